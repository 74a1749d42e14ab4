"""The README's commands and its program run as they stand."""

import re
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import ON_PATH, REPOSITORY, TwoStages, dimred_here, run

README, CHINESE, PRODUCTION, CONTRIBUTING, STEPS = (
    (REPOSITORY / name).read_text(encoding="utf-8")
    for name in (
        "README.md",
        ".github/README.zh-CN.md",
        "pipelines/README.md",
        ".github/CONTRIBUTING.md",
        "dimred/train_step/README.md",
    )
)


def blocks(language: str, section: str = "", text_of: str = README) -> list[str]:
    """Return the blocks of a language in a section, or before the first one."""
    start = f"^## {section}\n" if section else r"\A"
    text = re.search(rf"{start}(.*?)(?=^## |\Z)", text_of, re.MULTILINE | re.DOTALL)
    assert text, section
    return re.findall(rf"^```{language}\n(.*?)^```", text[1], re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_quick_start_are_understood(two_stages: TwoStages, tmp_path: Path) -> None:
    """The run is of 3 epochs in place of 6; the slow test runs all of them."""
    commands = blocks("bash", "Quick start")[1].replace("-6_74.ckpt", "-3_37.ckpt").splitlines()
    training = [command.split() for command in commands if command.startswith("dimred train ")]
    assert len(training) == 3
    (tmp_path / "digits").symlink_to(two_stages.data)
    (tmp_path / "device0_stage_1").symlink_to(two_stages.stage_1)
    for file in (two_stages.matrix, two_stages.matrix.with_suffix(".h5")):
        (tmp_path / file.name).symlink_to(file)
    for words in training:
        done = dimred_here(*words[1:], "--dry-run", cwd=tmp_path, status=0)
        assert "node 0 of 1: ranks 0 to " in done.stdout


@pytest.mark.slow
def test_the_commands_of_the_quick_start_print_the_lines_that_stand_here(tmp_path: Path) -> None:
    """The search is computed on the host, by the kernels that OpenBLAS takes for this processor."""
    _, commands = blocks("bash", "Quick start")
    as_a_user = ("env", "-u", "OPENBLAS_CORETYPE", "-u", "OPENBLAS_L2_SIZE", "bash", "-e", "-c")
    done = run(*as_a_user, commands, cwd=tmp_path, environment=ON_PATH, status=0)
    assert len(re.findall(r"^\{'Accuracy': 0\.\d+\}$", done.stdout, re.MULTILINE)) == 3
    assert (tmp_path / "device0_stage_2" / "report" / "report.html").exists()
    printed = blocks("text", "Quick start")[0].splitlines()
    begins = tuple({line.partition(":")[0] for line in printed})
    assert [line for line in done.stdout.splitlines() if line.startswith(begins)] == printed


def test_the_chinese_page_has_the_same_commands_and_figures() -> None:
    for section, title in (
        ("", "三条命令"),
        ("Quick start", "一条命令看到结果"),
        ("Quick start", "快速上手"),
    ):
        ours = [line for block in blocks("bash", section) for line in block.splitlines()]
        theirs = [line for block in blocks("bash", title, CHINESE) for line in block.splitlines()]
        assert theirs
        assert set(theirs) <= {line.partition("     #")[0] for line in ours}, title
    assert blocks("text", "快速上手", CHINESE) == blocks("text", "Quick start")


def test_the_production_commands_as_a_dry_run(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / "imagenet" / "train" / f"n{number:08d}").mkdir(parents=True)
    for text_of, section in ((README, ""), (PRODUCTION, "Production: many devices")):
        [commands] = blocks("bash", section, text_of)
        stage_1, pca, stage_2 = commands.splitlines()
        assert pca.startswith("dimred pca ")
        for path in stage_2.split()[3:]:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
        for command in (stage_1, stage_2):
            words = command.replace("scripts/", f"{REPOSITORY}/scripts/").split()
            done = run(*words, "--dry-run", "--device-target", "Ascend", cwd=tmp_path, environment=ON_PATH, status=0)
            assert done.stdout.count("--device-target Ascend --out ") == 8
            assert "rank 7: " in done.stdout


@pytest.mark.slow
def test_the_programs_for_your_own_network_and_for_the_parts_of_a_step(tmp_path: Path) -> None:
    program = "".join(blocks("python", "Your own network") + blocks("python", "The parts of a step", STEPS))
    in_a_thread = f"""
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as worker:
    worker.submit(exec, {program!r}, {{}}).result()
"""
    for code in (program, in_a_thread):  # twice in the same folder; a notebook may have threads
        done = run(sys.executable, "-c", code, cwd=tmp_path, status=0)
        first, last = re.findall(r"^stage [12]: (0\.\d{3})$", done.stdout, re.MULTILINE)
        assert f"It prints {first} after stage 1 and {last} after stage 2." in README
        assert float(last) < float(first)


def test_all_three_commands_are_on_the_first_screen_and_the_page_is_short() -> None:
    lines = README.splitlines()
    assert len(lines) <= 150
    first = "\n".join(lines[:50])
    for command in ("dimred train stage-1 ./digits", "dimred pca --ckpt-dir", "resnet_small-6_74.ckpt pca_mat.npy"):
        assert command in first


def test_ci_runs_the_very_command_that_the_readme_gives_for_the_tests() -> None:
    command = re.search(r"^(bash scripts/test\.sh)\b", blocks("bash", "Quick start")[0], re.MULTILINE)
    assert command
    assert command[1] in (REPOSITORY / ".ci" / "run").read_text().splitlines()


def test_the_map_names_every_package_and_each_has_a_readme_that_is_named_right() -> None:
    packages = [path for path in (REPOSITORY / "dimred").iterdir() if (path / "__init__.py").exists()]
    for package in packages:
        assert f"{package.name}/`" in CONTRIBUTING, package
        assert (package / "README.md").exists()


def test_no_readme_is_longer_than_90_lines_or_wider_than_120_signs() -> None:
    pages = [*(REPOSITORY / "dimred").glob("*/README.md"), *(REPOSITORY / "tests").rglob("README.md")]
    assert len(pages) > 15
    for page in pages:
        lines = page.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 90, page
        assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == [], page  # a row can't wrap


def test_links_lead_to_files() -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / ".github").glob("*.md")]
    for page in [*pages, *(REPOSITORY / "dimred").glob("*/README.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.resolve().parent / target).exists(), f"{page}: {target}"
