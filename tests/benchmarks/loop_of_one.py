"""Seconds of each epoch of one program: python -m tests.benchmarks.loop_of_one PROGRAM FOLDER [WEIGHTS].

PROGRAM is ``bare``, ``model``, ``stage_1`` or ``cooldown``, all with the same network, data and optimizer; it runs on
one core. The first epoch, which compiles, is left out. The figures are the last line, as JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from dimred.builders import build_data, build_network
from dimred.builders.loss_and_metric import build_loss
from dimred.builders.steps import build_optimizer, build_rates
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.io.metrics_file import read_metrics
from tests.helpers.tiny_run import Run, stage_1_run, stage_2_run

EPOCHS = 5


class Images16:
    """Forty batches of 64 random images; reading them costs next to nothing."""

    def __init__(self, data: Path, split: str, seed: int | None):
        rng = np.random.default_rng(1)
        self._images = rng.normal(size=(64 * 40 if split == "train" else 64, 3, 16, 16)).astype(np.float32)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return self._images[number], number % 10


TASK: dict[str, Any] = {
    "model": {"name": "resnet_small", "n_classes": 10},
    "data": {"dataset": "tests.benchmarks.loop_of_one:Images16", "batch_size": 64},
    "epochs": EPOCHS,
    "reestimate_batch_norm": False,
}
ONE = StageOneConfig.model_validate(TASK | {"schedule": {"peak": 0.01, "warmup_epochs": 0, "total_epochs": EPOCHS + 1}})
TWO = StageTwoConfig.model_validate(TASK | {"start": "last"})


def without_dimred(by_model: bool) -> list[float]:
    """Train by ``TrainOneStepCell`` in a loop, or by ``Model.train``; return the seconds of each epoch."""
    network, images = build_network(ONE), build_data(ONE.data, Path(), "train")
    rates, loss = build_rates(ONE.schedule, images.steps_per_epoch, EPOCHS).tolist(), build_loss(ONE, network)
    optimizer = build_optimizer(ONE.optimizer, network, rates)

    def in_a_loop(epoch: int) -> None:
        for batch in images.training_epoch(1, epoch).create_tuple_iterator(num_epochs=1):
            found = step(*batch)
        found.asnumpy()

    def with_model(epoch: int) -> None:
        model.train(1, images.training_epoch(1, epoch)._batches, dataset_sink_mode=False)

    if by_model:
        model, train = ms.train.Model(loss, optimizer=optimizer), with_model
    else:
        step, train = nn.TrainOneStepCell(loss, optimizer).set_train(True), in_a_loop
    return [seconds_of(lambda epoch=epoch: train(epoch)) for epoch in range(1, EPOCHS + 1)]  # type: ignore[misc]


def seconds_of(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def with_dimred(run: Run, out: Path) -> list[float]:
    """Run a stage in a folder; return the seconds of each epoch's steps."""
    run(out, False)
    return [record["seconds"] for record in read_metrics(out / "metrics.jsonl")]


def main(program: str, out: str, weights: str = "") -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    ms.set_context(mode=ms.GRAPH_MODE)
    if program == "stage_1":
        found = with_dimred(stage_1_run(ONE), Path(out))
    elif program == "cooldown":
        found = with_dimred(stage_2_run(TWO, Path(weights)), Path(out))
    else:
        found = without_dimred(by_model=program == "model")
    assert len(found) == EPOCHS
    print(json.dumps(found[1:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
