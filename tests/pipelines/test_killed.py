"""Kill a run at random moments of its writing, resume it each time, and get the uninterrupted run's results.

DIMRED_KILLS (default 30) is the number of kills in each phase, and DIMRED_KILL_SEED (default 1) chooses the moments; up
to three kills hit one run. All of this is slow; by default ``tests/stages/test_every_write_event.py`` lets runs die in
this process and compares what they resume to, and ``tests/launch`` sends signals to real processes.
"""

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dimred.checkpoints.states import RunStates
from tests.helpers.commands import DIGITS, REPOSITORY, run
from tests.helpers.results import differences, results
from tests.helpers.tiny_task import TASK

KILLS = int(os.environ.get("DIMRED_KILLS", "30"))
SEED = int(os.environ.get("DIMRED_KILL_SEED", "1"))
IN_A_ROW = 3
ONE = [
    "epochs=3",
    "data.batch_size=20",
    "schedule.total_epochs=4",
    "schedule.warmup_epochs=1",
    "snapshots.per_epoch=4",
    "snapshots.first_epoch=1",
    "snapshots.keep=9",
    "checkpoints.every_epochs=1",
    "checkpoints.keep=2",
    "save_every_steps=3",
    "data.eval_split=val",
]
TWO = [
    "epochs=2",
    "data.batch_size=50",
    "search.n_components=4",
    "save_every_steps=2",
    "reestimate_batches=2",
    "data.eval_split=val",
]


@dataclass(frozen=True)
class Phase:
    """A program whose ``--out`` is still to be given, and what its uninterrupted run wrote."""

    command: list[str]
    results: dict[str, Any]
    events: int
    out_name: str
    resume: list[str]


def killed(phase: Phase, folder: Path, event: int, delay: float, *, resumed: bool, how: str = "SIGKILL"):
    """Run the phase with ``--out`` in ``folder`` and signal it; return the process and its events (0 if it died)."""
    count = folder / "count"
    count.unlink(missing_ok=True)
    options = phase.resume if resumed else []
    command = [sys.executable, "-m", "tests.helpers.write_events", event, delay, how, count, *phase.command]
    command += ["--out", folder / "run" / phase.out_name, *options]
    done = run(*command, cwd=REPOSITORY)
    return done, int(count.read_text() or 0) if count.exists() else 0  # it may have died while it wrote the file


def uninterrupted(command: list[object], out_name: str, resume: list[str], folder: Path) -> Phase:
    phase = Phase([str(part) for part in command], {}, 0, out_name, resume)
    (folder / "run").mkdir(parents=True)
    done, events = killed(phase, folder, 0, 0, resumed=False)
    assert done.returncode == 0, done.stderr
    return Phase(phase.command, results(folder / "run"), events, out_name, resume)


@pytest.fixture(scope="module")
def stage_1(few_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Phase, Path]:
    folder = tmp_path_factory.mktemp("one")
    command = ["dimred.pipelines.stage_1", few_digits, "--config", DIGITS, *(f"--set={option}" for option in ONE)]
    return uninterrupted(command, "stage_1", ["--resume"], folder), folder / "run" / "stage_1"


@pytest.fixture(scope="module")
def pca(stage_1: tuple[Phase, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Phase, Path]:
    folder = tmp_path_factory.mktemp("pca")
    snapshots = stage_1[1] / "checkpoint_stage_1" / "checkpoint_pca"
    command = ["dimred", "pca", "--ckpt-dir", snapshots, "--n-components", 4]
    return uninterrupted(command, "pca_mat.npy", ["--force"], folder), folder / "run" / "pca_mat.npy"


@pytest.fixture(scope="module")
def stage_2(
    few_digits: Path, stage_1: tuple[Phase, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Phase, Path]:
    """Run stage 2 without a basis, which it fits on the way."""
    folder = tmp_path_factory.mktemp("two")
    weights = stage_1[1] / "checkpoint_stage_1" / "resnet_small-3_10.ckpt"
    options = [f"--set={option}" for option in TWO]
    command = ["dimred.pipelines.stage_2", few_digits, weights, "--config", DIGITS, *options]
    return uninterrupted(command, "stage_2", ["--resume"], folder), folder / "run" / "stage_2"


def survive(phase: Phase, kills: int, seed: int, folder: Path, say: Callable[[str], None]) -> None:
    """Kill and resume ``kills`` times; compare each run that came to its end."""
    chance = random.Random(seed)
    so_far, run = 0, 0
    while so_far < kills:
        place = folder / f"run_{run}"
        (place / "run").mkdir(parents=True)
        in_a_row, done = 0, None
        while done is None or done.returncode != 0:
            kill = in_a_row < IN_A_ROW and so_far < kills
            # A resumed run has fewer events left, so it may end before a late moment comes.
            event = chance.randint(1, phase.events if in_a_row == 0 else phase.events // 2) if kill else 0
            delay = chance.choice([0, 0, chance.uniform(0, 0.3)])
            done, _ = killed(phase, place, event, delay, resumed=in_a_row > 0)
            assert done.returncode in (0, -signal.SIGKILL), done.stderr
            if done.returncode != 0:
                in_a_row, so_far = in_a_row + 1, so_far + 1
                say(f"kill {so_far}: {delay:.2f} s after event {event} of {phase.events}")
        assert not differences(results(place / "run"), phase.results), f"after {in_a_row} kills"
        shutil.rmtree(place)
        run += 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stage_1", "pca", "stage_2"])
def test_a_killed_run_is_resumed_to_the_same_bytes(name: str, tmp_path: Path, request) -> None:
    survive(request.getfixturevalue(name)[0], KILLS, SEED, tmp_path, print)


@pytest.mark.slow
def test_sigterm_saves_the_step_and_ends_with_its_own_status(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(TASK))
    (tmp_path / "run").mkdir()
    command = ["dimred.pipelines.stage_1", ".", "--config", str(tmp_path / "one.yaml")]
    phase = Phase([*command, "--set=epochs=40"], {}, 0, "stage_1", [])
    done, _ = killed(phase, tmp_path, 60, 0, resumed=False, how="SIGTERM")
    assert done.returncode == 143, done.stderr
    assert "--resume" in done.stderr
    assert str(RunStates(tmp_path / "run" / "stage_1").newest(pytest.fail).path) in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("how", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_saves_the_step_and_ends_with_its_own_status(
    stage_1: tuple[Phase, Path], tmp_path: Path, how: str, status: int
) -> None:
    phase = stage_1[0]
    (tmp_path / "run").mkdir()
    done, _ = killed(phase, tmp_path, phase.events // 3, 0, resumed=False, how=how)
    assert done.returncode == status, done.stderr
    assert "--resume" in done.stderr
    state = RunStates(tmp_path / "run" / "stage_1").newest(pytest.fail)
    assert str(state.path) in done.stderr
    done, _ = killed(phase, tmp_path, 0, 0, resumed=True)
    assert done.returncode == 0, done.stderr
    assert not differences(results(tmp_path / "run"), phase.results)
