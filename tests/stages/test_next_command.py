"""The lines with the next commands: which programs and options they name."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig
from dimred.console import Lines
from dimred.launch.environment import log_commands
from dimred.runs.task import build_task
from dimred.stages.next_command import commands_after_stage_1
from tests.helpers.commands import DIMRED, next_lines, run
from tests.helpers.tiny_task import TASK

BIN = DIMRED.parent
SYSTEM = "/usr/bin:/bin"


@pytest.mark.parametrize(("path", "begins"), [(f"{BIN}:{SYSTEM}", "dimred "), (SYSTEM, f"{DIMRED} ")])
def test_the_line_starts_this_installation_whether_or_not_it_is_active(
    path: str, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that made the environment leaves it inactive."""
    monkeypatch.setenv("PATH", path)
    shown = StringIO()
    with redirect_stdout(shown), Lines(to_stdout=True):
        log_commands(["--version"], ["--help"])
    version, _ = next_lines(shown.getvalue())
    assert version.startswith(begins)
    assert run("bash", "-c", version, environment={"PATH": path}, status=0).stdout.startswith("dimred ")


def commands(folder: Path, n_snapshots: int) -> list[list[str]]:
    """Return the commands after a stage 1 that kept so many snapshots, and whose recipe searches in 32 directions."""
    run_folder = folder / "a run" / "device0_stage_1"
    weights = run_folder / "checkpoint_stage_1" / "network-4_4.ckpt"
    series = CheckpointSeries.create(weights.parent / "checkpoint_pca", 40)
    for step in range(n_snapshots):
        series.append({"w": np.float32([step])}, step, 1)
    config = StageOneConfig.checked(TASK | {"stage_2": {"data": {"batch_size": 256}}})
    return commands_after_stage_1(build_task(config, Path(), splits=["train", "val"]), weights, run_folder)


@pytest.mark.parametrize(("n_snapshots", "n_components", "sets"), [(40, "32", None), (4, "3", "search.n_components=3")])
def test_the_basis_has_as_many_directions_as_the_recipe_or_the_snapshots_give(
    n_snapshots: int, n_components: str, sets: str | None, tmp_path: Path
) -> None:
    pca, train = commands(tmp_path, n_snapshots)
    assert pca[3:5] == ["--n-components", n_components]
    assert train[4] == pca[-1] == str(tmp_path / "a run" / "pca_mat.npy")
    assert [word for word in train if word.startswith("search.")] == ([sets] if sets else [])
    assert "data.batch_size=24" in train  # the recipe's 256 would be refused


@pytest.mark.parametrize(("name", "next_one"), [("linear", "report"), ("step", "train"), ("constant", "train")])
def test_a_cooldown_follows_where_the_schedule_has_left_a_rate(name: str, next_one: str, tmp_path: Path) -> None:
    schedule = {"name": name, "warmup_epochs": 0, "total_epochs": 4, "milestones": [2] if name == "step" else []}
    one = StageOneConfig.checked(TASK | {"schedule": schedule, "epochs": 4, "stage_2": {"method": "cooldown"}})
    task = build_task(one, Path(), splits=["train", "val"])
    [[first, *_]] = commands_after_stage_1(task, tmp_path / "network-4_4.ckpt", tmp_path)
    assert first == next_one


@pytest.mark.parametrize("n_snapshots", [0, 1])
def test_without_two_snapshots_there_is_nothing_to_search_in(n_snapshots: int, tmp_path: Path) -> None:
    assert commands(tmp_path, n_snapshots) == [["report", str(tmp_path / "a run" / "device0_stage_1")]]


def test_a_basis_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a run").mkdir()
    (tmp_path / "a run" / "pca_mat.npy").write_bytes(b"of another run")
    pca, train = commands(tmp_path, 4)
    assert train[4] == pca[-1] == str(tmp_path / "a run" / "pca_mat_network-4_4.npy")
