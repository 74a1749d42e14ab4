"""The README's commands and its program run as they stand."""

import re
import sys
from pathlib import Path

from tests.helpers.commands import ON_PATH, REPOSITORY, run

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PRODUCTION = (REPOSITORY / "pipelines" / "README.md").read_text(encoding="utf-8")


def blocks(language: str, section: str, text_of: str = README) -> str:
    text = re.search(rf"^## {section}\n(.*?)(?=^## )", text_of, re.MULTILINE | re.DOTALL)
    assert text, section
    found = re.findall(rf"^```{language}\n(.*?)^```", text[1], re.MULTILINE | re.DOTALL)
    assert len(found) == 1, section
    return found[0]


def test_the_commands_of_the_quick_start(tmp_path: Path) -> None:
    done = run("bash", "-e", "-c", blocks("bash", "Quick start"), cwd=tmp_path, environment=ON_PATH, status=0)
    assert len(re.findall(r"^\{'Accuracy': 0\.\d+\}$", done.stdout, re.MULTILINE)) == 2
    assert (tmp_path / "device0_stage_2" / "report" / "report.html").exists()
    told = re.findall(r"^(accuracy on .*|stage 2 starts from .*)$", done.stdout, re.MULTILINE)
    assert told == blocks("text", "Quick start").splitlines()
    typed = blocks("bash", "Quick start").splitlines()[2]
    assert re.findall(r"^next: (dimred train .*)$", done.stdout, re.MULTILINE) == [
        typed.replace("./digits", str(tmp_path / "digits")).replace("device0_", f"{tmp_path}/device0_")
    ]


def test_the_production_commands_as_a_dry_run(tmp_path: Path) -> None:
    (tmp_path / "imagenet").mkdir()
    stage_1, pca, stage_2 = blocks("bash", "Production: many devices", PRODUCTION).splitlines()
    assert pca.startswith("dimred pca ")
    for path in stage_2.split()[3:]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    for command in (stage_1, stage_2):
        words = command.replace("scripts/", f"{REPOSITORY}/scripts/").split()
        done = run(*words, "--dry-run", cwd=tmp_path, status=0)
        assert done.stdout.count("--device-target Ascend --out ") == 8
        assert "rank 7: " in done.stdout


def test_the_program_for_your_own_network(tmp_path: Path) -> None:
    done = run(sys.executable, "-c", blocks("python", "Your own network"), cwd=tmp_path, status=0)
    first, started, last = (float(loss) for loss in re.findall(r"(?:: |loss )(0\.\d{3})", done.stdout))
    for told in (first, started, last):
        assert f"{told:.3f}" in README
    assert last < started < first


def test_ci_runs_the_very_command_that_the_readme_gives_for_the_tests() -> None:
    command = re.search(r"^(bash scripts/test\.sh)\b", blocks("bash", "Try it"), re.MULTILINE)
    assert command
    assert command[1] in (REPOSITORY / ".ci" / "run").read_text().splitlines()


def test_the_map_names_every_package_and_each_has_a_readme_that_is_named_right() -> None:
    packages = [path for path in (REPOSITORY / "dimred").iterdir() if (path / "__init__.py").exists()]
    for package in packages:
        assert f"{package.name}/`" in README, package
        assert len((package / "README.md").read_text(encoding="utf-8").splitlines()) <= (
            100 if package.is_symlink() else 60
        )


def test_links_lead_to_files() -> None:
    for page in [REPOSITORY / "README.md", *(REPOSITORY / "dimred").glob("*/README.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.resolve().parent / target).exists(), f"{page}: {target}"
