"""Resume and report a search of many steps, in a process of its own; see ``measured``.

The search is a real one of two epochs; its records are repeated until they are as many as the point says, and its
state and result are changed to fit them.
"""

import json
import shutil
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from dimred.checkpoints.series import CheckpointSeries
from dimred.checkpoints.states import RunStates
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.run_files.metrics_file import read_metrics
from dimred.run_files.run_names import METRICS, RESULT
from dimred.run_files.stage_two_result import StageTwoResult
from dimred.runs.records import MetricsLog
from dimred.subspace.fit import fit_basis
from tests.benchmarks import measured
from tests.benchmarks.measured import Engine, Point, cost_of, read_and_write
from tests.helpers.tiny_run import RunStage, stage_1_run, stage_2_run
from tests.helpers.tiny_task import N_CLASSES, N_FEATURES, TASK

PER_EPOCH, ROWS = 50, 4
Cost = dict[str, float]
SHARED: dict[str, Any] = TASK | {
    "data": {"dataset": "tests.benchmarks.records_engine:Points", "batch_size": ROWS, "workers": 1},
    "reestimate_batches": 1,
}
STAGE_1: dict[str, Any] = {
    "epochs": 10,
    "schedule": {"name": "constant", "peak": 0.1, "warmup_epochs": 0},
    "evaluate_every_epochs": 10,
    "snapshots": {"per_epoch": 4, "first_epoch": 1, "keep": 40},
}


class Points:
    """Points around the corners of a simplex, by number."""

    def __init__(self, data: Path, split: str, seed: int | None):
        rng = np.random.default_rng(len(split))
        self._labels = np.arange(ROWS * PER_EPOCH if split == "train" else 9) % N_CLASSES
        points = 2.0 * np.eye(N_CLASSES, N_FEATURES)[self._labels]
        self._points = (points + rng.normal(size=points.shape)).astype(np.float32)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return self._points[number], int(self._labels[number])


def search_of(folder: Path, n_epochs: int) -> RunStage:
    config = StageTwoConfig.model_validate(SHARED | {"epochs": n_epochs, "search": {"max_rejected_steps": 10**6}})
    [weights] = (folder / "one" / "checkpoint_stage_1").glob("*-10_*.ckpt")
    return stage_2_run(config, weights, folder / "pca_mat.npy")


def prepare(folder: Path, point: Point) -> Cost:
    stage_1_run(StageOneConfig.model_validate(SHARED | STAGE_1))(folder / "one", False)
    snapshots = CheckpointSeries.open(folder / "one" / "checkpoint_stage_1" / "checkpoint_pca")
    fit_basis(snapshots, 32, out=folder / "pca_mat.npy")
    two, n_steps = folder / "two", point["steps"]
    search_of(folder, 2)(two, False)
    records = read_metrics(two / METRICS)
    with (two / METRICS).open("w") as file:
        for step, record in enumerate(islice(cycle(records), n_steps), 1):
            file.write(json.dumps(record | {"step": step, "epoch": (step - 1) // PER_EPOCH + 1}) + "\n")
    with MetricsLog(two / METRICS) as log:
        mark = log.mark()
    states, result = RunStates(two), StageTwoResult.read(two / RESULT)
    state = states.newest(print)
    done = {"epoch": n_steps // PER_EPOCH, "done": PER_EPOCH, "metrics": mark}
    states.save(n_steps, state.arrays, state.values | done)
    replace(result, steps=n_steps, epochs=n_steps / PER_EPOCH).write(two / RESULT)
    shutil.copytree(two, folder / "finished")  # a run that is resumed takes its result away
    return {}


def resume(folder: Path, point: Point) -> Cost:
    """Resume after the last step: what is left is to measure the network and to write the result."""
    run = search_of(folder, point["steps"] // PER_EPOCH)
    return cost_of(lambda: run(folder / "two", True))


def report(folder: Path, point: Point) -> Cost:
    from dimred.pipelines.report import report

    return cost_of(lambda: report(folder / "finished", folder / "page", 3, 1))


def mark(folder: Path, point: Point) -> Cost:
    path = folder / "two" / METRICS
    with MetricsLog(path) as log:
        return cost_of(log.mark)


def least(folder: Path, point: Point) -> Cost:
    return cost_of(lambda: read_and_write([folder / "two" / METRICS]))


ENGINES: dict[str, Engine] = {
    "prepare": prepare,
    "resuming": resume,
    "dimred report": report,
    "what saving a state does with the records": mark,
    "reading the records once": least,
}

if __name__ == "__main__":
    measured.main(ENGINES)
