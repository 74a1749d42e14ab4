"""A run that dies at any one of its write events is resumed to the bytes of the uninterrupted run.

From that event on nothing reaches the disk, whatever the dying run still tries. ``tests/pipelines`` kills real
processes at a few of these moments. Here a task that trains in milliseconds allows all of them: by default all of the
PCA's and some of the two stages', and with ``-m slow`` each one.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.subspace.fit import fit_basis
from tests.helpers.results import differences, results
from tests.helpers.tiny_run import RunStage, stage_1_run, stage_2_run
from tests.helpers.tiny_task import TASK
from tests.helpers.write_events import WriteEvents

STAGE_1: dict[str, Any] = {
    "epochs": 2,
    "schedule": {"peak": 0.1, "warmup_epochs": 0, "total_epochs": 3},
    "checkpoints": {"every_epochs": 1, "keep": 1},
    "snapshots": {"per_epoch": 2, "keep": 3},
    "evaluate_every_epochs": 2,
    "stop": {"every_epochs": 1, "patience": 9},
}
ONE = StageOneConfig.model_validate(TASK | STAGE_1)
TWO = StageTwoConfig.model_validate(TASK | {"epochs": 2, "search": {"n_components": 2, "alpha": 0}})
COOLDOWN = StageTwoConfig.model_validate(TASK | {"method": "cooldown", "epochs": 2, "save_every_steps": 1})


class DeadError(BaseException):
    """Stands for the death of the process."""


@pytest.fixture(scope="module")
def dead_pid() -> int:
    """Return the id of a process that has ended; the dying runs write under it."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a stage 1, and fit the basis of its snapshots."""
    out = tmp_path_factory.mktemp("finished") / "stage_1"
    stage_1_run(ONE)(out, False)
    series = CheckpointSeries.open(out / "checkpoint_stage_1" / "checkpoint_pca")
    fit_basis(series, 2, out=out.parent / "pca_mat.npy")
    return out


def pca(finished: Path) -> RunStage:
    series = CheckpointSeries.open(finished / "checkpoint_stage_1" / "checkpoint_pca")
    return lambda out, resume: fit_basis(series, 2, out=out.with_suffix(".npy"), overwrite=resume)


def stage_2(finished: Path, config: StageTwoConfig = TWO) -> RunStage:
    weights = next((finished / "checkpoint_stage_1").glob("*.ckpt"))
    return stage_2_run(config, weights, None if config is COOLDOWN else finished.parent / "pca_mat.npy")


def events_of(run: RunStage, out: Path) -> tuple[int, dict[str, Any]]:
    """Return how many events an uninterrupted run has, and what it leaves."""
    out.parent.mkdir()
    with WriteEvents(str(out.parent), lambda number: None).watched() as events:
        run(out, False)
    return events.seen, results(out.parent)


def die_at(event: int, run: RunStage, out: Path, dead_pid: int) -> None:
    """Run until this event, from which on nothing reaches the disk."""

    def act(number: int) -> None:
        if number >= event:
            raise DeadError

    with pytest.MonkeyPatch.context() as patch, WriteEvents(str(out.parent), act).watched():
        patch.setattr(os, "getpid", lambda: dead_pid)
        with pytest.raises(DeadError):
            run(out, False)


@pytest.mark.parametrize(
    ("phase", "every"),
    [("stage_1", 53), ("pca", 1), ("search", 61)]
    + [pytest.param(phase, 1, marks=pytest.mark.slow) for phase in ("stage_1", "search", "cooldown")],
)
def test_a_run_that_dies_at_a_write_event_is_resumed_to_the_same_bytes(
    phase: str, every: int, finished: Path, dead_pid: int, tmp_path: Path
) -> None:
    run: RunStage = {
        "stage_1": lambda finished: stage_1_run(ONE),
        "pca": pca,
        "search": stage_2,
        "cooldown": lambda finished: stage_2(finished, COOLDOWN),
    }[phase](finished)
    n_events, expected = events_of(run, tmp_path / "whole" / "out")
    assert n_events > 10
    for event in range(1, n_events + 1, every):
        out = tmp_path / str(event) / "out"
        out.parent.mkdir()
        die_at(event, run, out, dead_pid)
        run(out, True)
        assert not differences(results(out.parent), expected), f"after event {event} of {n_events}"
