"""Take steps on several ranks of this host, and each of their parts alone; see ``measured``.

A step's parts are the same step of one rank, which all ranks take at the same time, and an all-reduce of as many
numbers as the network has weights. The votes on whether to go on travel in the step's all-reduce; ``wait`` is a step
before which the host waits for a vote of its own.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from dimred.distributed.ranks import ALONE, Ranks
from dimred.launch.job import make_job
from dimred.launch.launcher import launch
from dimred.runs.device import set_up
from dimred.runs.loop import EpochLoop, Observer, Progress
from dimred.train_step.step import TrainStep
from tests.benchmarks import measured
from tests.benchmarks.measured import Engine, Point
from tests.helpers.commands import REPOSITORY

STEPS, ROUNDS = 50, 5
Cost = dict[str, float]


def job(folder: Path, point: Point) -> Cost:
    """Launch the ranks, each of which runs this module again, and return the medians of rank 0."""
    name = "tests.benchmarks.ranks_engine"
    out = Path(mkdtemp(dir=folder))  # which must be empty
    os.environ["PYTHONPATH"] = str(REPOSITORY)  # the ranks don't search the current folder
    ranks = make_job(name, "stage_1", [], out=out, devices=point["ranks"], device_target="CPU")
    assert launch(ranks) == 0
    figures: Cost = json.loads((ranks.folder(0) / "figures.json").read_text())
    return figures


class Images:
    """Batches that are read already."""

    steps_per_epoch = STEPS

    def __init__(self, rank: int):
        rng = np.random.default_rng(rank)
        labels = Tensor(rng.integers(0, 10, 64).astype(np.int32))
        self._batches = [(Tensor(rng.standard_normal((64, 512), np.float32)), labels) for _ in range(STEPS)]

    def training_epoch(self, seed: int, epoch: int) -> "Images":
        return self

    def create_tuple_iterator(self, num_epochs: int) -> Iterator[tuple[Tensor, ...]]:
        return iter(self._batches)


class Losses(Observer):
    """Read the losses as a training does."""

    def after_step(self, result: Any, progress: Progress) -> None:
        float(result.loss)

    def after_epoch(self, progress: Progress) -> None:
        self.seconds = progress.seconds / STEPS


def network() -> nn.Cell:
    return nn.SequentialCell(nn.Dense(512, 512), nn.ReLU(), nn.Dense(512, 512), nn.ReLU(), nn.Dense(512, 10))


def epoch_of(images: Images, ranks: Ranks, **options: Any) -> Callable[[], float]:
    """Return a function that takes an epoch and returns its seconds a step."""
    loss = nn.WithLossCell(network(), nn.CrossEntropyLoss())
    step = TrainStep(loss, nn.Momentum(loss.trainable_params(), 1e-3, 0.9), ranks=ranks, **options)

    def take() -> float:
        losses = Losses()
        loop = EpochLoop("benchmark", step, images, seed=1, n_epochs=1, read_every_steps=10, ranks=ranks)  # type: ignore[arg-type]
        loop.run(Progress(), losses)
        return losses.seconds

    return take


def rank(out: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK_ID"]) % len(cores)]})
    ranks = set_up(1)
    images, reduce = Images(ranks.rank), ranks.mean()
    gradient = Tensor(np.ones(sum(one.size for one in network().trainable_params()), np.float32))

    def reduction() -> float:
        started = time.perf_counter()
        for _ in range(STEPS if reduce is not None else 0):
            reduce(gradient)[0].asnumpy()
        return (time.perf_counter() - started) / STEPS

    works = {
        "seconds": epoch_of(images, ranks, ballot=ranks.ballot()),
        "wait": epoch_of(images, ranks),
        "alone": epoch_of(images, ALONE),
        "reduction": reduction,
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(1 + ROUNDS):
        for name, work in works.items():
            ranks.any(False)  # all begin together
            times[name].append(work())
    figures = {name: statistics.median(of_one[1:]) for name, of_one in times.items()}
    figures["parts"] = figures["alone"] + figures["reduction"]
    (out / "figures.json").write_text(json.dumps(figures))


ENGINES: dict[str, Engine] = {"prepare": lambda folder, point: {}, "a step": job}

if __name__ == "__main__":
    if "RANK_ID" in os.environ:
        rank(Path(sys.argv[-1]))
    else:
        measured.main(ENGINES)
