"""Stage 2 beside what it has to beat, from the same finished stage 1: ``dimred compare``.

Every method begins at stage 1's last full checkpoint or its snapshots. The split ``val`` chooses (k, decay, rate,
epoch), the split ``test`` reports. What is finished is a file in the output folder and is not run again.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.build import (
    build_data,
    build_network,
    build_search_step,
    build_train_step,
    check_splits,
)
from dimred.build.preflight import basis_kind
from dimred.config import CooldownConfig, StageOneConfig, StageTwoConfig
from dimred.console import say
from dimred.data.batches import SEARCH_EPOCHS_FROM
from dimred.errors import ConfigError, NothingAcceptedError
from dimred.evaluate.averages import SnapshotAverages, average_snapshots, combine_snapshots
from dimred.evaluate.evaluator import Evaluator
from dimred.evaluate.selection import Selection
from dimred.evaluate.window_search import search_windows
from dimred.files.atomic import atomic_write
from dimred.files.run_names import SNAPSHOTS, STAGE_1_CHECKPOINTS
from dimred.merging.search import greedy_soup
from dimred.run.device import set_up
from dimred.run.loop import CountPasses, EpochLoop, Place
from dimred.run.training import parameters_to_save
from dimred.subspace.basis import SubspaceBasis
from dimred.subspace.fit import fit_basis
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries

LAWA_LENGTHS = (3, 5, 10, 20)
EMA_DECAYS = (0.5, 0.8, 0.9, 0.95)
RATE_FACTORS = (0.1, 1.0, 10.0)  # of the configured learning_rate
SPLITS = ("train", "val", "test")

Arrays = dict[str, np.ndarray]


class Entry(NamedTuple):
    """What a method made.

    Attributes:
        arrays: parameters and statistics by name.
        epochs: of training, stage 1's included.
        chosen: what the split ``val`` chose, in words; empty where there was nothing to choose.
    """

    arrays: Arrays
    epochs: int
    chosen: str = ""


def compare_seed(
    data: Path, run: Path, one: StageOneConfig, two: StageTwoConfig, out: Path, methods: Sequence[str]
) -> None:
    """Run the methods that are not in ``out`` yet; each leaves ``METHOD.json`` and ``METHOD.ckpt``.

    Args:
        data: folder with train/, val/ and test/.
        run: folder of a finished stage 1.
        one: its configuration.
        two: of the searches; network, seed and loss must be stage 1's.
        out: folder of this seed's results.
        methods: names from ``METHODS``.

    Raises:
        DataError: a split is missing.
        ConfigError: the two configurations are of different networks.
    """
    missing = [method for method in methods if not (out / f"{method}.json").exists()]
    check_splits(one, data, SPLITS)
    if two.model != one.model:
        raise ConfigError(f"--config is for the model {two.model}, but {str(run)!r} trained {one.model}")
    set_up(one.seed)
    comparison = Comparison(data, run, one, two)
    for method in missing:
        print(f"seed {one.seed}: {method}", file=sys.stderr, flush=True)
        comparison.evaluator.cost.forward = comparison.evaluator.cost.backward = 0
        started, spent = time.perf_counter(), comparison.seconds_of_bases
        entry = METHODS[method](comparison)
        seconds = time.perf_counter() - started - (comparison.seconds_of_bases - spent)
        cost = comparison.evaluator.cost
        record = {
            "method": method, "seed": one.seed, "data": str(data), "run": str(run),
            "epochs": entry.epochs, "chosen": entry.chosen,
            "forward_epochs": cost.forward / comparison.train.n_images,
            "backward_epochs": cost.backward / comparison.train.n_images,
            "seconds": seconds, **comparison.evaluator.report(entry.arrays),
        }  # fmt: skip
        write_checkpoint(out / f"{method}.ckpt", entry.arrays)
        atomic_write(out / f"{method}.json", json.dumps(record, indent=2) + "\n")


class Comparison:
    """One seed's stage 1, and the verbs the methods are made of."""

    def __init__(self, data: Path, run: Path, one: StageOneConfig, two: StageTwoConfig):
        self.data, self.one, self.two = data, one, two
        self.seconds_of_bases = 0.0
        self.checkpoint = last_checkpoint(run, one.epochs)
        self.series = CheckpointSeries.open(run / STAGE_1_CHECKPOINTS / SNAPSHOTS)
        self.train, self.val, test = (build_data(two.data, data, split) for split in SPLITS)
        network = build_network(one)
        self.names = [parameter.name for parameter in network.get_parameters()]
        self.layout = WeightLayout.from_network(network)
        self.evaluator = Evaluator(network, self.train, self.val, test, seed=two.seed, n_batches=two.reestimate_batches)
        self.saved = read_checkpoint(self.checkpoint)
        self.last = {name: self.saved[name] for name in self.names}

    def with_weights(self, vector: np.ndarray) -> Arrays:
        """The last checkpoint with other weights; its statistics stay."""
        return self.last | {name: np.array(value) for name, value in self.layout.unflatten(vector).items()}

    def accuracy(self, vector: np.ndarray) -> float:
        """On ``val``, of weights (M,), statistics re-estimated."""
        return self.evaluator.val_accuracy(self.evaluator.reestimated(self.with_weights(vector)))

    def losses(self, vector: np.ndarray) -> np.ndarray:
        """On each sample of ``val``, of weights (M,), statistics re-estimated."""
        return self.evaluator.val_losses(self.evaluator.reestimated(self.with_weights(vector)))

    def train_on(self, n_epochs: int, cooldown: bool = False) -> Entry:
        """Plain training from the last checkpoint, optimizer state included."""
        last = self.one.epochs + n_epochs
        schedule = self.one.schedule
        if cooldown:
            leaving = CooldownConfig(after_epoch=self.one.epochs, epochs=n_epochs)
            schedule = schedule.model_copy(update={"cooldown": leaving})
        settings = self.one.model_copy(update={"schedule": schedule, "epochs": last})
        images = build_data(settings.data, self.data, "train", accumulation=settings.accumulation)
        network = build_network(settings)
        step = build_train_step(settings, network, images.steps_per_epoch)
        from_arrays(parameters_to_save(step), self.saved, str(self.checkpoint))
        loop = EpochLoop("cooldown" if cooldown else "plain", step, images, seed=settings.seed, n_epochs=last)
        loop.run(Place(self.one.epochs + 1), CountPasses(self.evaluator.cost))
        return Entry(to_arrays(network.get_parameters()), last)

    def search(self, start: Arrays | None = None, **options: Any) -> "_Searched":
        """Stage 2 with some options changed; where ``keep_best`` is set, ``val`` chooses among start and epochs."""
        settings = self.two.model_copy(update=options)
        images = build_data(settings.data, self.data, settings.search_split, accumulation=settings.accumulation)
        network = build_network(settings)
        from_arrays(network.get_parameters(), start or self.start(), "the start of the search")
        step = build_search_step(settings, network, self.basis(basis_kind(settings)), images.steps_per_epoch)
        points = [to_arrays(network.get_parameters())]
        observer = CountPasses(self.evaluator.cost, lambda: points.append(to_arrays(network.get_parameters())))
        loop = EpochLoop(
            settings.search, step, images, seed=settings.seed, n_epochs=settings.epochs, first_order=SEARCH_EPOCHS_FROM
        )
        try:
            loop.run(Place(), observer)
        except NothingAcceptedError as stop:
            say(f"the search ends: {stop}")
        considered = range(len(points)) if settings.keep_best else [len(points) - 1]
        losses = {number: float(self.evaluator.val_losses(points[number]).mean()) for number in considered}
        kept = min(losses, key=lambda number: losses[number])
        return _Searched(points[kept], kept, losses[kept])

    def best_rate(self, search: str) -> Entry:
        """A search with a rate, at the rate that ``val`` chooses."""
        rates = [factor * self.two.learning_rate for factor in RATE_FACTORS]
        start = self.start()
        tried = [self.search(start, search=search, learning_rate=rate) for rate in rates]
        best = int(np.argmin([found.val_loss for found in tried]))
        return self.entry(tried[best], f"rate {rates[best]:g}, ")

    def entry(self, found: "_Searched", chosen: str = "") -> Entry:
        """A search as an entry; its epochs are those that were run, whichever was kept."""
        kept = "the start" if found.kept == 0 else f"epoch {found.kept}"
        return Entry(found.arrays, self.one.epochs + self.two.epochs, f"{chosen}{kept}")

    def start(self) -> Arrays:
        """Where the searches begin, as stage 2 would."""
        chosen = self.two.start
        if chosen == "last":
            return self.last
        if chosen == "best":
            last = ("last", 1.0, self.layout.flatten(self.last))
            found = search_windows(SnapshotAverages(self.series, self.layout), self.losses, [last])
            return self.evaluator.reestimated(self.with_weights(found.weights))
        if chosen == "mean":
            return self.evaluator.reestimated(self.with_weights(average_snapshots(self.series, self.layout)))
        raise ConfigError(f"start is {chosen!r}; a comparison starts from 'best', 'mean' or 'last'")

    @property
    def epochs_left(self) -> int:
        """Of stage 1's schedule."""
        return self.one.schedule.total_epochs - self.one.epochs

    def last_weights(self) -> Entry:
        """Stage 1 as it ended."""
        return Entry(self.last, self.one.epochs)

    def moving_averages(self) -> Entry:
        """The best exponential moving average of the snapshots."""
        averages = (
            (decay, average_snapshots(self.series, self.layout, f"exponential={decay}")) for decay in EMA_DECAYS
        )
        return self._best_of((f"decay {decay}", average) for decay, average in averages)

    def latest_averages(self) -> Entry:
        """The best mean of the latest snapshots (LAWA)."""
        lengths = [length for length in LAWA_LENGTHS if length < len(self.series)] or [1]
        return self._best_of((f"k = {k}", average_snapshots(self.series.select(last=k), self.layout)) for k in lengths)

    def average(self) -> Entry:
        """The mean of all snapshots (SWA)."""
        return self._averaged(average_snapshots(self.series, self.layout))

    def greedy_soup(self) -> Entry:
        """The greedy soup of the snapshots."""

        def mean(coefficients: Sequence[float]) -> np.ndarray:
            return combine_snapshots(self.series, self.layout, coefficients)

        soup, _ = greedy_soup(len(self.series), lambda coefficients: self.accuracy(mean(coefficients)))
        return self._averaged(mean(soup), f"{np.count_nonzero(soup)} of {len(self.series)} snapshots")

    def search_on_val(self) -> Entry:
        """Searched on val, which sees as many images as a search on train."""
        n_epochs = max(1, round(self.two.epochs * self.train.n_images / self.val.n_images))
        return self.entry(self.search(search="bfgs", search_split="val", epochs=n_epochs))

    def _best_of(self, candidates: Iterable[tuple[str, np.ndarray]]) -> Entry:
        selection, weights = Selection(), dict(candidates)
        for name, vector in weights.items():
            selection.measure(name, 1.0, self.losses, vector)
        name = selection.lowest().name
        return self._averaged(weights[name], name)

    def _averaged(self, weights: np.ndarray, chosen: str = "") -> Entry:
        return Entry(self.with_weights(weights), self.one.epochs, chosen)

    @cache  # noqa: B019 - a comparison lives as long as its process
    def basis(self, kind: str) -> SubspaceBasis:
        """The basis of the snapshots, fitted once; its seconds count for no method."""
        print(f"seed {self.one.seed}: basis ({kind})", file=sys.stderr, flush=True)
        started = time.perf_counter()
        basis = fit_basis(self.series, self.two.n_components, kind=kind, layout=self.layout)
        self.seconds_of_bases += time.perf_counter() - started
        return basis


class _Searched(NamedTuple):
    arrays: Arrays
    kept: int
    val_loss: float


def last_checkpoint(run: Path, epochs: int) -> Path:
    """The last full checkpoint of a stage 1 run of so many epochs.

    Raises:
        ConfigError: it has none, or is not finished.
    """
    found = {
        int(name[1]): path
        for path in (run / STAGE_1_CHECKPOINTS).glob("*.ckpt")
        if (name := re.search(r"-(\d+)_\d+$", path.stem))
    }
    if max(found, default=0) != epochs:
        raise ConfigError(
            f"RUN is {str(run)!r}, whose newest checkpoint_stage_1/NAME-EPOCH_STEP.ckpt is of epoch "
            f"{max(found, default=0)} of {epochs}; finish stage 1 first (its --resume goes on with it)"
        )
    return found[epochs]


METHODS: dict[str, Callable[[Comparison], Entry]] = {
    "last": Comparison.last_weights,
    "ema": Comparison.moving_averages,
    "lawa": Comparison.latest_averages,
    "swa": Comparison.average,
    "greedy_soup": Comparison.greedy_soup,
    "trainable_averaging": lambda comparison: comparison.best_rate("average"),
    "projected_sgd": lambda comparison: comparison.best_rate("sgd"),
    "p_bfgs_train": lambda comparison: comparison.entry(comparison.search(search="bfgs", search_split="train")),
    "p_bfgs_val": Comparison.search_on_val,
    "cooldown": lambda comparison: comparison.train_on(comparison.two.epochs, cooldown=True),
    "plain_same_epochs": lambda comparison: comparison.train_on(comparison.two.epochs),
    "plain_to_the_end": lambda comparison: comparison.train_on(comparison.epochs_left),
}
