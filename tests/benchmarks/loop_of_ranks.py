"""Measure a job's seconds a step; the launcher starts python -m tests.benchmarks.loop_of_ranks --out FOLDER.

``before`` is an all-reduce before each step, for whose answer the host waits; ``after`` lets the votes travel in the
step. Several instances of each take turns, and each rank keeps to one core.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindspore import Tensor, nn

from dimred.distributed.ranks import Ranks
from dimred.runs.device import set_up
from dimred.runs.loop import EpochLoop, Observer, Progress
from dimred.train_step.step import TrainStep
from tests.helpers.networks import BatchNormNet, image_batch

STEPS, ROUNDS, INSTANCES = 100, 5, 4


class Images:
    """Batches that are read already."""

    steps_per_epoch = STEPS

    def __init__(self, rank: int):
        self._batches = [image_batch(number) for number in range(rank, 2 * STEPS, 2)]

    def training_epoch(self, seed: int, epoch: int) -> "Images":
        return self

    def create_tuple_iterator(self, num_epochs: int) -> Iterator[tuple[Tensor, ...]]:
        return iter(self._batches)


class Losses(Observer):
    """Read the losses as a training does."""

    def after_step(self, result: Any, place: Progress) -> None:
        float(result.loss)

    def after_epoch(self, place: Progress) -> None:
        self.seconds = place.seconds


def make_epoch(ranks: Ranks, **options: Any) -> Any:
    """Return a function that takes an epoch and returns its seconds a step."""
    network, images = BatchNormNet(), Images(ranks.rank)
    step = TrainStep(network, nn.Momentum(network.trainable_params(), 1e-3, 0.9), ranks=ranks, **options)

    def take() -> float:
        losses = Losses()
        EpochLoop("benchmark", step, images, seed=1, n_epochs=1, read_every_steps=10, ranks=ranks).run(
            Progress(), losses
        )
        return losses.seconds / STEPS

    take()
    return take


def main() -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK_ID"]) % len(cores)]})
    ranks = set_up(1)
    figures: dict[str, list[list[float]]] = {"before": [], "after": []}
    for _ in range(INSTANCES):
        before, after = make_epoch(ranks), make_epoch(ranks, ballot=ranks.ballot())
        rounds = [(before(), after()) for _ in range(ROUNDS)]
        for name, times in zip(figures, zip(*rounds, strict=True), strict=True):
            figures[name].append([*times])
    (Path(sys.argv[-1]) / "figures.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
