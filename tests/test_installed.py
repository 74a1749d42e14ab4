"""dimred as it is installed: one name at the top of site-packages, and the programs and their files inside it."""

import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.helpers.commands import REPOSITORY, run

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
NEEDED = ("pipelines/stage_1.py", "pipelines/stage_2.py", "report/style.css", "report/page.html")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, which has nothing of an earlier build."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("dimred", "pipelines"):
        shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    done = run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, source)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.iterdir()
    return built


def test_a_wheel_holds_dimred_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"dimred", "-".join(wheel.name.split("-")[:2]) + ".dist-info"}
    configurations = [f"pipelines/configs/{path.name}" for path in (REPOSITORY / "pipelines/configs").glob("*.yaml")]
    assert len(configurations) >= 4
    assert {f"dimred/{name}" for name in (*NEEDED, *configurations)} <= set(names)


def test_an_installed_dimred_runs_its_commands(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = run(*PIP, "install", "--no-deps", "--target", site, wheel)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name.split("-")[0] for path in site.iterdir()} == {"bin", "dimred"}
    (tmp_path / "data").mkdir()
    environment = {"PYTHONPATH": str(site)}
    where = run(sys.executable, "-c", "import dimred; print(dimred.__file__)", cwd=tmp_path, environment=environment)
    assert where.stdout.strip() == str(site / "dimred" / "__init__.py")
    command = (sys.executable, site / "bin" / "dimred")
    assert "Exit status" in run(*command, "--help", cwd=tmp_path, environment=environment).stdout
    dry = run(*command, "train", "stage-1", "data", "--dry-run", cwd=tmp_path, environment=environment)
    assert dry.returncode == 0, dry.stderr
    assert dry.stdout.count(f"--config {site}{os.sep}dimred/pipelines/configs/imagenet_stage_1.yaml") >= 8
    assert dry.stdout.count("-m dimred.pipelines.stage_1 ") == 8
