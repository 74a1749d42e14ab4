"""Measure one program's seconds a step: python -m tests.benchmarks.loop_of_one PROGRAM NETWORK FOLDER [WEIGHTS].

PROGRAM is ``bare``, ``model``, ``stage_1`` or ``cooldown``; all have the same data and optimizer. NETWORK is ``small``,
a residual network of 27 ms a step, or ``light``, whose step is hardly more than the host's own work. The program keeps
to one core, where nothing waits, and processor time is taken, because other programs change it less. The first epoch
compiles and is left out. The last line has the figures of the other epochs as JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mindspore as ms
import numpy as np
from mindspore import nn

from dimred.config import StageOneConfig, StageTwoConfig
from dimred.run_files.metrics_file import read_metrics
from dimred.runs.splits import build_data
from dimred.runs.steps import build_loss, build_optimizer, build_rates
from dimred.runs.task import build_network
from tests.helpers.tiny_run import RunStage, stage_1_run, stage_2_run

EPOCHS = 5


class Images16:
    """2,560 random images, which cost next to nothing to read."""

    def __init__(self, data: Path, split: str, seed: int | None):
        rng = np.random.default_rng(1)
        self._images = rng.normal(size=(2560 if split == "train" else 64, 3, 16, 16)).astype(np.float32)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return self._images[number], number % 10


def light(n_classes: int) -> nn.Cell:
    return nn.SequentialCell(nn.Flatten(), nn.Dense(3 * 16 * 16, n_classes))


NETWORKS = {"small": ("resnet_small", 64), "light": ("tests.benchmarks.loop_of_one:light", 4)}  # name, batch size


def task(network: str) -> dict[str, Any]:
    """Return the keys that the configurations of both stages share."""
    name, batch_size = NETWORKS[network]
    return {
        "model": {"name": name, "n_classes": 10},
        "data": {"dataset": "tests.benchmarks.loop_of_one:Images16", "batch_size": batch_size},
        "epochs": EPOCHS,
        "reestimate_batch_norm": False,
    }


def without_dimred(one: StageOneConfig, by_model: bool) -> list[float]:
    """Train by ``TrainOneStepCell`` in a loop, or by ``Model.train``; return the seconds of each epoch."""
    network, images = build_network(one), build_data(one.data, Path(), "train")
    rates, loss = build_rates(one.schedule, images.steps_per_epoch, EPOCHS).tolist(), build_loss(one, network)
    optimizer = build_optimizer(one.optimizer, network, rates)

    def in_a_loop(epoch: int) -> None:
        for batch in images.training_epoch(1, epoch).create_tuple_iterator(num_epochs=1):
            found = step(*batch)
        found.asnumpy()

    def with_model(epoch: int) -> None:
        model.train(1, images.training_epoch(1, epoch).batches, dataset_sink_mode=False)

    if by_model:
        model, train = ms.train.Model(loss, optimizer=optimizer), with_model
    else:
        step, train = nn.TrainOneStepCell(loss, optimizer).set_train(True), in_a_loop
    return [seconds_of(lambda epoch=epoch: train(epoch)) for epoch in range(1, EPOCHS + 1)]  # type: ignore[misc]


def seconds_of(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def with_dimred(run: RunStage, out: Path) -> list[float]:
    """Run a stage in a folder; return the seconds of each epoch's steps."""
    run(out, False)
    return [record["seconds"] for record in read_metrics(out / "metrics.jsonl")]


def main(program: str, network: str, out: str, weights: str = "") -> None:
    one = StageOneConfig.model_validate(
        task(network) | {"schedule": {"peak": 0.01, "warmup_epochs": 0, "total_epochs": EPOCHS + 1}}
    )
    two = StageTwoConfig.model_validate(task(network) | {"method": "cooldown"})
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    ms.set_context(mode=ms.GRAPH_MODE)
    with patch("time.perf_counter", time.process_time):  # the clock of a run's records, too
        if program == "stage_1":
            found = with_dimred(stage_1_run(one), Path(out))
        elif program == "cooldown":
            found = with_dimred(stage_2_run(two, Path(weights)), Path(out))
        else:
            found = without_dimred(one, by_model=program == "model")
    assert len(found) == EPOCHS
    n_steps = 2560 // NETWORKS[network][1]
    print(json.dumps([seconds / n_steps for seconds in found[1:]]))


if __name__ == "__main__":
    main(*sys.argv[1:])
