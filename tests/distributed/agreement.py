"""Checks of ``checks.py``: ranks leave a loop together when one of them fails or is told to stop."""

import functools
import os
import signal
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from dimred.data.batches import DamagedError
from dimred.distributed.group import Group
from dimred.distributed.ranks import Ranks
from dimred.errors import ConfigError, DataError, DivergedError, StoppedError
from dimred.launch.signals import StopSignals
from dimred.runs.faults import DivergenceDetector
from dimred.runs.loop import EpochLoop, Observer, Progress
from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale
from dimred.train_step.step import StepResult, TrainStep
from dimred.vectors.parameters import from_arrays, to_arrays
from tests.helpers.networks import BatchNormNet, image_batch
from tests.helpers.problems import changed, fusion_groups, primitives
from tests.helpers.reads import watched_reads

READ_EVERY, STEPS, MICRO = 3, 8, 4  # steps of an epoch; rows of a micro-batch, of which a batch has two
EVENTS = {"fault": DamagedError("no image"), "SIGTERM": signal.SIGTERM}


class Net(nn.Cell):
    """A network whose loss is not finite where an image is not; ReLU alone would hide that."""

    def __init__(self) -> None:
        super().__init__()
        self.net = BatchNormNet()

    def construct(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.net(images, labels) + 0.0 * images.mean()


class Synchronised(Net):
    """A network with a collective in each forward pass, as with SyncBatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.all_reduce = ops.AllReduce()

    def construct(self, images: Tensor, labels: Tensor) -> Tensor:
        return self.net(images, labels) + 0.1 * self.all_reduce(images.mean())


class Images:
    """An epoch of batches, before some of which something happens on this rank."""

    steps_per_epoch = STEPS

    def __init__(self, ranks: Ranks, events: dict[int, Any], poison: range = range(0), short: tuple[int, ...] = ()):
        self._events = events
        self._batches = [image_batch(step * ranks.group_size + ranks.rank) for step in range(1, 2 * STEPS + 1)]
        for step in short:
            self._batches[step - 1] = tuple(part[:MICRO] for part in self._batches[step - 1])
        for step in poison:
            self._batches[step - 1] = (Tensor(np.full((8, 1, 6, 6), np.nan, np.float32)), self._batches[step - 1][1])

    def rows_of_step(self, step: int) -> int:
        return len(self._batches[self._first + step - 1][0])

    def training_epoch(self, seed: int, epoch: int) -> "Images":
        self._first = (epoch - 1) * STEPS
        return self

    def create_tuple_iterator(self, num_epochs: int) -> Iterator[tuple[Tensor, ...]]:
        for step in range(self._first + 1, self._first + STEPS + 1):
            event = self._events.get(step)
            if isinstance(event, DataError):
                raise event
            if event is not None:
                os.kill(os.getpid(), event)
            yield self._batches[step - 1]


class Seen(Observer):
    """What a run did: the values it saved, the steps it recorded, where it read, and how it ended."""

    def __init__(self, step: TrainStep):
        self.step, self.watch = step, DivergenceDetector()
        self.saved: dict[int, dict[str, np.ndarray]] = {}
        self.recorded: list[int] = []
        self.launched, self.reads, self.end = 0, set[int](), "the end"

    def count(self) -> None:
        self.launched += 1

    def after_step(self, result: StepResult, place: Progress) -> None:
        self.recorded.append(place.n_steps(STEPS))
        self.watch.check(float(result.loss), place.n_steps(STEPS))

    def save(self, place: Progress) -> None:
        self.saved[place.n_steps(STEPS)] = to_arrays(list(self.step.get_parameters()))


class Runs:
    """Runs of one step, each from the same initial values."""

    def __init__(self, ranks: Ranks, net: type[Net] = Net, short: tuple[int, ...] = (), **options: Any):
        network, self.short = net(), short
        if "parts" in options:
            options["parts"] = [part(network) if part is EMA else part for part in options["parts"]]
        optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        self.step = TrainStep(network, optimizer, ranks=ranks, ballot=ranks.ballot(), **options)
        self.ranks, self.first = ranks, to_arrays(list(self.step.get_parameters()))
        self.weights = [weight.name for weight in network.trainable_params()]
        self.stopped = self.run({}, read_every_steps=1, save_every=1).saved | {0: self.first}
        """Step -> the values of a run that was stopped there."""

    def run(
        self,
        events: dict[int, Any],
        poison: range = range(0),
        n_epochs: int = 2,
        read_every_steps: int = READ_EVERY,
        save_every: int | None = None,
    ) -> "Seen":
        from_arrays(list(self.step.get_parameters()), self.first, "the beginning")
        seen = Seen(self.step)
        with StopSignals() as signals, watched_reads(lambda: seen.reads.add(seen.launched)):
            loop = EpochLoop(
                "agreement",
                self.step,
                Images(self.ranks, events, poison, self.short),
                seed=1,
                n_epochs=n_epochs,
                read_every_steps=read_every_steps,
                save_every_steps=save_every,
                ranks=self.ranks,
                signals=signals,
                after_launch=seen.count,
            )
            try:
                loop.run(Progress(), seen)
            except (DataError, DivergedError, StoppedError) as error:
                seen.end = f"{type(error).__name__}: {error}"
        return seen

    def told(self, seen: "Seen") -> dict[str, Any]:
        """Return how a run ended, whether its last state is that of a run stopped there, and its weights' digest."""
        last = max(seen.saved)
        return {
            "recorded": seen.recorded,
            "launched": seen.launched,
            "saved": last,
            "end": seen.end,
            "reads": sorted(seen.reads),
            "as stopped": not changed(self.stopped[last], seen.saved[last]),
            "weights": sha256(b"".join(seen.saved[last][name].tobytes() for name in self.weights)).hexdigest(),
        }


@functools.cache
def runs_of_all_parts(ranks: Ranks) -> Runs:
    return Runs(ranks, parts=[DynamicLossScale(128.0), Clipping(1.0), EMA])


def one_rank_leaves(ranks: Ranks) -> dict:
    """Make the last rank fail to read a batch, or get SIGTERM, before some step; or stop rank 0 before that."""
    is_last, found = ranks.rank == ranks.group_size - 1, dict[str, Any]()
    runs = runs_of_all_parts(ranks)
    found["whole"] = runs.told(runs.run({}))
    for name, event in EVENTS.items():
        for step in (*range(2, 2 + READ_EVERY), STEPS, STEPS + 1):
            found[f"{name} {step}"] = runs.told(runs.run({step: event} if is_last else {}))
    found["both 5"] = runs.told(runs.run({6: EVENTS["fault"]} if is_last else {5: EVENTS["SIGTERM"]}))
    return found


def one_rank_leaves_between_micro_batches(ranks: Ranks) -> dict:
    """Make the last rank fail to read a batch of two micro-batches, or get SIGTERM, before some step."""
    is_last, found = ranks.rank == ranks.group_size - 1, dict[str, Any]()
    micro = Runs(ranks, micro_batch_size=MICRO)
    for name, event in EVENTS.items():
        for step in (2, STEPS):
            found[f"{name} {step}"] = micro.told(micro.run({step: event} if is_last else {}))
    # The last group of an epoch is one micro-batch; the batch before it, with which this rank goes on, is two.
    synchronised = Runs(ranks, Synchronised, (STEPS, 2 * STEPS), micro_batch_size=MICRO)
    found[f"fault {STEPS} with a collective in each pass"] = synchronised.told(
        synchronised.run({STEPS: EVENTS["fault"]} if is_last else {})
    )
    return found


def one_loss_is_not_finite(ranks: Ranks) -> dict:
    """Make the last rank's losses NaN in two steps, which are dropped, or in all, which ends the run."""
    is_last = ranks.rank == ranks.group_size - 1
    dropping, found = runs_of_all_parts(ranks), dict[str, Any]()
    for step in range(4, 4 + READ_EVERY):
        poison = range(step, step + 2) if is_last else range(0)
        dropping.stopped = dropping.run({}, poison, read_every_steps=1, save_every=1).saved
        seen = dropping.run({}, poison)
        n_overflows = int(seen.saved[2 * STEPS]["loss_scale.overflows"])
        found[f"dropped {step}"] = dropping.told(seen) | {"n_overflows": n_overflows}
    seen = dropping.run({}, range(1, 2 * STEPS) if is_last else range(0))
    return found | {"diverged": [seen.recorded, seen.launched, seen.end]}


def all_reduces(ranks: Ranks) -> dict:
    """Count the all-reduces of a step with votes, and of the means of 25 tensors, mostly small."""
    mean = ranks.mean()
    shapes = ((), (2**14 + 1,), (3, 4), (2**14,), (130, 130), *[(1, 2, 3)] * 20)
    rng = np.random.default_rng(1)
    values = [np.asarray(rng.standard_normal(shape), np.float32) for shape in shapes]
    ours = [Tensor(value * (ranks.rank + 1), ms.float32) for value in values]
    fused = Group(ranks.rank, ranks.group_size, (1, 4)).mean(len(ours))
    means, sums = mean(*ours), fused(*ours)
    refused = []
    for splits in ((4, 1), (len(ours),)):
        try:
            Group(ranks.rank, ranks.group_size, splits).mean(len(ours))
        except ConfigError as error:
            refused.append(str(error))

    def error_of(reduced: Sequence[Tensor]) -> float:
        exact = [(ranks.group_size + 1) / 2 * value for value in values]
        return max(float(np.abs(one.asnumpy() - other).max()) for one, other in zip(reduced, exact, strict=True))

    return {
        "of a step": primitives(runs_of_all_parts(ranks).step)["AllReduce"],
        "of means": primitives(mean)["AllReduce"],
        "fused": fusion_groups(fused),
        "refused": refused,
        "fused is equal": all(
            np.array_equal(one.asnumpy(), other.asnumpy()) for one, other in zip(sums, means, strict=True)
        ),
        "shapes": [tuple(each.shape) for each in means] == [*shapes],
        "error": error_of(means),
        "fused error": error_of(sums),
    }
