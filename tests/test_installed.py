"""An installed dimred has one name at the top of site-packages, with the programs and their files inside it."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import mindspore
import numpy as np
import pytest
from packaging.metadata import Metadata

import dimred
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import DISTRIBUTION, TRAINING_PACKAGES
from tests.helpers.commands import REPOSITORY, run

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
NEEDED = ("pipelines/stage_1.py", "pipelines/stage_2.py", "report/style.css", "report/page.html", "py.typed")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the source without anything of an earlier build."""
    source = tmp_path_factory.mktemp("source")
    for name in ("dimred", "pipelines"):
        shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    return source


def wheel_of(source: Path, out: Path) -> Path:
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, source, status=0)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(source, tmp_path_factory.mktemp("wheel"))


def test_the_package_has_a_name_that_no_stranger_has_in_the_index(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [text] = (archive.read(name) for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Metadata.from_email(text)  # checks every field
    assert (metadata.name, str(metadata.version)) == (DISTRIBUTION, dimred.__version__)
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description == (REPOSITORY / "README.md").read_text(encoding="utf-8")
    pages = [path for path in REPOSITORY.rglob("*.md") if not any(part.startswith(".venv") for part in path.parts)]
    told = [path.read_text(encoding="utf-8") for path in [*pages, *(REPOSITORY / "dimred").rglob("*.py")]]
    assert len(pages) > 20
    assert not [text for text in told if re.search(r"pip install (-\S+ )*['\"]?dimred(?!-mindspore)", text)]


def test_a_wheel_holds_dimred_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"dimred", "-".join(wheel.name.split("-")[:2]) + ".dist-info"}
    configurations = [f"pipelines/configs/{path.name}" for path in (REPOSITORY / "pipelines/configs").glob("*.yaml")]
    assert len(configurations) >= 4
    assert {f"dimred/{name}" for name in (*NEEDED, *configurations)} <= set(names)


@pytest.fixture
def sdist(source: Path, tmp_path: Path) -> Path:
    code = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    return tmp_path / run(sys.executable, "-c", code, tmp_path, cwd=source, status=0).stdout.splitlines()[-1]


def test_an_sdist_holds_the_package_its_page_and_its_licence(sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {"LICENSE", "README.md", "PKG-INFO", "pyproject.toml"}
    of_wheel = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("dimred/")}
    assert of_wheel <= names


@pytest.mark.slow
def test_an_sdist_gives_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    again = wheel_of(sdist, tmp_path / "wheel")
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_an_installed_dimred_runs_its_commands(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    run(*PIP, "install", "--no-deps", "--target", site, wheel, status=0)
    assert {path.name.split("-")[0] for path in site.iterdir()} == {"bin", "dimred", "dimred_mindspore"}
    for number in range(1000):
        (tmp_path / "data" / "train" / f"n{number}").mkdir(parents=True)
    environment = {"PYTHONPATH": str(site)}
    where = run(sys.executable, "-c", "import dimred; print(dimred.__file__)", cwd=tmp_path, environment=environment)
    assert where.stdout.strip() == str(site / "dimred" / "__init__.py")
    command = (sys.executable, site / "bin" / "dimred")
    assert "Exit status" in run(*command, "--help", cwd=tmp_path, environment=environment).stdout
    words = ("train", "stage-1", "data", "--dry-run", "--device-target", "Ascend")
    dry = run(*command, *words, cwd=tmp_path, environment=environment, status=0)
    assert dry.stdout.count(f"--config {site}{os.sep}dimred/pipelines/configs/imagenet.yaml") >= 8
    assert dry.stdout.count("-m dimred.pipelines.stage_1 ") == 8


PROGRAM = """
import dimred
from typing import Any, assert_type

series = dimred.CheckpointSeries.create("run")
assert_type(series.steps, list[int])
assert_type(dimred.fit_basis(series, 3), dimred.SubspaceBasis)
assert_type(dimred.merge("run", "out.safetensors"), dict[str, Any])
snapshots: dimred.CheckpointSeries | None = dimred.SnapshotCallback("run").series
dimred.fit_basis(series, "3")
dimred.no_such_name
"""


@pytest.mark.slow
def test_type_checkers_see_the_types_of_an_installed_dimred(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", status=0)
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    run(*PIP, "install", "--no-deps", "--target", site, wheel, status=0)
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"))  # NumPy's types
    (tmp_path / "program.py").write_text(PROGRAM)
    python = tmp_path / "venv" / "bin" / "python"
    done = run(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "program.py", cwd=tmp_path)
    lines = [line.partition("error: ")[2] for line in done.stdout.splitlines()]
    assert lines == [
        'Argument 2 to "fit_basis" has incompatible type "str"; expected "int | None"  [arg-type]',
        'Module has no attribute "no_such_name"  [attr-defined]',
        "",
    ], done.stdout


def test_a_clone_is_installed_once_and_again_where_it_was_moved_to(tmp_path: Path) -> None:
    """Its Python only notes what it is called with, because pip would take minutes; it finds no GPU."""
    clone, moved = tmp_path / "clone", tmp_path / "moved"
    (clone / ".venv" / "bin").mkdir(parents=True)
    shutil.copytree(REPOSITORY / "scripts", clone / "scripts")
    shutil.copy(REPOSITORY / "pyproject.toml", clone)
    python = clone / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -I ] || echo $* >> {tmp_path}/calls\n')
    python.chmod(0o755)
    for place in (clone, clone, moved):
        if place is moved:
            clone.rename(moved)
        run("bash", "-c", f". {place}/scripts/install.sh; install", status=0)
    calls = (tmp_path / "calls").read_text().splitlines()
    installed = [call.split()[-1] for call in calls if call.startswith("-m pip install ")]
    assert installed == [f"{clone}[test]", f"{moved}[test]"]
    assert calls.count("-c import dimred.pipelines.stage_1, dimred.pipelines.stage_2") == 2  # to keep its bytecode


@pytest.mark.slow
def test_a_script_behind_a_link_runs_in_the_environment_it_is_called_in(tmp_path: Path) -> None:
    """Neither the environment that can train nor the one that can not is the clone's own, which is never made."""
    clone, link = tmp_path / "a clone", tmp_path / "stage_1.sh"
    shutil.copytree(REPOSITORY / "scripts", clone / "scripts")
    shutil.copy(REPOSITORY / "pyproject.toml", clone)
    link.symlink_to(clone / "scripts" / "run_stage_1.sh")
    (tmp_path / "data").mkdir()
    for name in ("full", "empty"):
        run(sys.executable, "-m", "venv", "--without-pip", tmp_path / name, status=0)
    (site,) = (tmp_path / "full").glob("lib/python3*/site-packages")
    (site / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\nimport sys; sys.path.append('{REPOSITORY}')")
    full, empty = (tmp_path / name / "bin" / "python" for name in ("full", "empty"))
    command = ("bash", link, "data", "--config", "digits", "--dry-run", "--devices", 1)
    for environment in ({"PATH": f"{full.parent}:{os.environ['PATH']}"}, {"DIMRED_PYTHON": str(full)}):
        done = run(*command, cwd=tmp_path, environment=environment, status=0)
        assert f"{full} -P -m dimred.pipelines.stage_1 {tmp_path}/data" in done.stdout
    refused = run(*command, cwd=tmp_path, environment={"DIMRED_PYTHON": str(empty)}, status=2)
    assert refused.stderr.startswith(f"error: DIMRED_PYTHON is '{empty}', which lacks dimred; '{empty}' -m pip install")
    refused = run(*command, cwd=tmp_path, environment={"DIMRED_PYTHON": "gone"}, status=2)
    assert refused.stderr.startswith("error: DIMRED_PYTHON is 'gone', which is not a program; give a Python")
    assert not (clone / ".venv").exists()


@pytest.fixture
def snapshots(tmp_path: Path) -> Path:
    """Write a series without MindSpore, in both formats."""
    rng = np.random.default_rng(0)
    for step in range(1, 6):
        series = CheckpointSeries.resume(tmp_path / "snapshots", format="ckpt" if step < 3 else "safetensors")
        series.append({"w": rng.normal(size=(3, 4)).astype(np.float32)}, step=step, epoch=step)
    return series.directory


def check_commands(command: list[object], snapshots: Path, missing_for_images: str) -> None:
    """Run what the base install is for, and commands that need more, whose first missing package is named."""
    folder = snapshots.parent
    for arguments in (
        ("pca", "--ckpt-dir", snapshots, "--n-components", 2, "--out", folder / "pca_mat.npy"),
        ("show", folder / "pca_mat.npy"),
        ("merge", snapshots, "--out", folder / "merged.safetensors"),
        ("--version",),
    ):
        run(*command, *arguments, cwd=folder, status=0)
    assert (folder / "merged.safetensors").exists()
    before = set(folder.iterdir())
    for package, *arguments in (
        (missing_for_images, "data", "digits", folder / "digits"),
        (
            "mindspore",
            "train",
            "stage-1",
            folder,
            "--config",
            "digits",
            "--device-target",
            "CPU",
            "--devices",
            "1",
            "--out",
            "runs",
        ),
        ("mindspore", "summary", "resnet_small"),
    ):
        refused = run(*command, *arguments, cwd=folder, status=2)
        line = refused.stderr.splitlines()[0]
        assert line.startswith(f"error: this needs the Python package {package}, which is not installed;")
        assert line.endswith("python -m pip install 'dimred-mindspore[train]'")
    assert set(folder.iterdir()) == before


def test_merging_and_pca_need_no_package_of_training(snapshots: Path) -> None:
    absent = f"import sys; sys.modules.update(dict.fromkeys({TRAINING_PACKAGES})); "
    check_commands([sys.executable, "-c", absent + "from dimred.cli.main import app; app()"], snapshots, "PIL")
    code = absent + "import dimred; dimred.TrainStep"
    done = run(sys.executable, "-c", code, cwd=snapshots.parent)
    assert "MissingPackageError: this needs the Python package mindspore" in done.stderr


@pytest.mark.slow
def test_an_installed_wheel_proves_a_machine_without_the_clone(wheel: Path, tmp_path: Path) -> None:
    """Its environment has the packages of this one, but not the clone."""
    home, work = tmp_path / "environment", tmp_path / "work"
    work.mkdir()
    run(sys.executable, "-m", "venv", home, status=0)
    run(home / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", wheel, status=0)
    (site,) = home.glob("lib/python3*/site-packages")
    (site / "packages.pth").write_text(str(Path(mindspore.__file__).parents[1]))
    where = run(home / "bin" / "python", "-c", "import dimred; print(dimred.__file__)", cwd=work, status=0)
    assert where.stdout.startswith(str(site))
    command = (home / "bin" / "dimred", "doctor", "--full", "--device-target", "CPU")
    done = run(*command, cwd=work, environment={"PYTHONPATH": ""}, timeout_seconds=1800, status=0)
    assert done.stdout.endswith("all is well\n")
    (path,) = work.iterdir()
    numbers = json.loads(path.read_text())["numbers"]
    modes = ("graph", "pynative")
    steps = ("kernels", "a training step", "a search step", "2 ranks")
    for step in steps:
        assert {check.split(", ")[1] for check in numbers if check.startswith(f"{step} beside ")} == {*modes}
    assert len(numbers) == len(steps) * len(modes) + 1
    values = [one for check in numbers.values() for one in check]
    assert all(0 <= one["value"] <= one["limit"] for one in values)
    assert {one["value"] for one in numbers["a run that is killed and resumed"]} == {0}


@pytest.mark.slow
def test_a_base_install_in_a_fresh_environment_is_small_and_works(wheel: Path, sdist: Path, snapshots: Path) -> None:
    """It is away from the clone: its working folder and its environment know of none."""
    home = snapshots.parent / "environment"
    assert run(sys.executable, "-m", "venv", home).returncode == 0
    python, dimred_there = home / "bin" / "python", home / "bin" / "dimred"
    run(python, "-m", "pip", "install", "--quiet", wheel, status=0)
    size = subprocess.run(["du", "-sm", home / "lib"], capture_output=True, text=True, check=True).stdout
    assert int(size.split()[0]) < 300
    check_commands([dimred_there], snapshots, "sklearn")  # matplotlib has brought Pillow along
    assert "Exit status" in run(dimred_there, "--help", cwd=snapshots.parent, status=0).stdout
    (snapshots.parent / "data" / "train" / "ant").mkdir(parents=True)
    words = ("train", "stage-1", "data", "--config", "digits", "--device-target", "CPU", "--devices", 1, "--dry-run")
    dry = run(dimred_there, *words, cwd=snapshots.parent, status=0).stdout
    (digits,) = home.glob("lib/python3*/site-packages/dimred/pipelines/configs/digits.yaml")
    assert re.search(rf"{re.escape(str(home))}/bin/python\S* .*-m dimred\.pipelines\.stage_1 ", dry)
    assert f" --config {digits} " in dry
    run(python, "-m", "pip", "install", "--quiet", "twine", status=0)
    run(python, "-m", "twine", "check", "--strict", wheel, sdist, status=0)
