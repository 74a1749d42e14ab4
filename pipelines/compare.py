"""Stage 2 beside what it has to beat, from the same stage 1: ``dimred compare``.

Every method has stage 1 up to one epoch: its full checkpoint and its snapshots. BatchNorm is re-estimated in every row.
The split ``val`` chooses, the split ``test`` reports. What is finished is a file in the output folder and is not run
again.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.build import check_splits
from dimred.build.from_stage_1 import SPLITS, Arrays, Found, StageOneSoFar, Start
from dimred.build.preflight import basis_kind
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.errors import ConfigError
from dimred.evaluate.averages import average_snapshots, combine_snapshots
from dimred.evaluate.evaluator import Cost
from dimred.files.atomic import atomic_write
from dimred.merging.search import greedy_soup
from dimred.run.device import set_up
from dimred.search.basis_check import Basis, RandomBasis
from dimred.weights.checkpoint_io import write_checkpoint

RATE_FACTORS = (0.1, 1.0, 10.0)  # of the configured learning_rate
COOLDOWN_FACTORS = (1 / 3, 1.0)  # of the rate that stage 1 ended with
PEAK_FACTORS = (0.5, 1.0, 2.0)  # of stage 1's peak
PUBLISHED: dict[str, Any] = {"residual": "published", "search": "bfgs", "search_split": "train"}


class Entry(NamedTuple):
    """What a method made.

    Attributes:
        arrays: parameters and statistics by name.
        passes: forward and backward of the training that made them, in epochs of ordinary training; stage 1's are
            included, those of trainings that ``val`` did not choose are not.
        chosen: what ``val`` chose, in words; empty where there was nothing to choose.
        choice: the same as a number, where the method keeps it for other seeds.
    """

    arrays: Arrays
    passes: float
    chosen: str = ""
    choice: float | None = None


def compare_seed(
    data: Path, run: Path, one: StageOneConfig, two: StageTwoConfig, at: int, out: Path, methods: Sequence[str]
) -> None:
    """Run the methods that are not in ``out`` yet; each leaves ``METHOD.json`` and ``METHOD.ckpt``.

    Args:
        data: folder with train/, val/ and test/.
        run: folder of a stage 1.
        one: its configuration.
        two: of the searches; network, seed and loss must be stage 1's.
        at: the epoch that stage 1 ends with here.
        out: folder of this seed's results, for this epoch.
        methods: names from ``METHODS``.

    Raises:
        DataError: a split is missing.
        ConfigError: the two configurations are of different networks; stage 1 has not kept what is needed of ``at``.
    """
    missing = [method for method in METHODS if method in methods and not (out / f"{method}.json").exists()]
    check_splits(one, data, SPLITS)
    for key in ("model", "loss"):
        own, trained = getattr(two, key), getattr(one, key)
        if own != trained:
            raise ConfigError(f"--config is for the {key} {own}, but {str(run)!r} trained {trained}")
    set_up(one.seed)
    comparison = Comparison(data, run, one, two, at, folder=out)
    for method in missing:
        print(f"seed {one.seed}: {method}", file=sys.stderr, flush=True)
        cost = comparison.evaluator.cost = Cost()
        started, spent = time.perf_counter(), comparison.seconds_shared
        entry = METHODS[method](comparison)
        seconds = time.perf_counter() - started - (comparison.seconds_shared - spent)
        record = {
            "method": method, "seed": one.seed, "at": at, "data": str(data), "run": str(run),
            "metric": two.metric_name, "batch_norm": comparison.evaluator.has_batch_norm,
            "passes": entry.passes, "chosen": entry.chosen, "choice": entry.choice,
            "forward_epochs": cost.forward / comparison.train.n_images,
            "backward_epochs": cost.backward / comparison.train.n_images,
            "seconds": seconds, **comparison.evaluator.report(entry.arrays),
        }  # fmt: skip
        write_checkpoint(out / f"{method}.ckpt", entry.arrays)
        atomic_write(out / f"{method}.json", json.dumps(record, indent=2) + "\n")


class Comparison(StageOneSoFar):
    """The methods.

    Args:
        folder: where the results of this seed at this epoch are.
        others: as ``StageOneSoFar``.
    """

    def __init__(self, *others: Any, folder: Path):
        super().__init__(*others)
        self.folder = folder

    def entry(self, found: Found, chosen: str = "", choice: float | None = None) -> Entry:
        """A search from here as an entry."""
        return Entry(found.arrays, self.at + found.passes, f"{chosen}{found.kept}", choice)

    def last_weights(self) -> Entry:
        """Stage 1 as it is here."""
        return Entry(self.last, self.at)

    def average(self) -> Entry:
        """The mean of all snapshots (SWA)."""
        return Entry(self.with_weights(average_snapshots(self.series, self.layout)), self.at)

    def best_window(self) -> Entry:
        """The best start, and nothing after it."""
        window = self.chosen_window()
        return Entry(window.arrays, self.at, window.name)

    def greedy_soup(self) -> Entry:
        """The greedy soup of the snapshots."""

        def mean(coefficients: Sequence[float]) -> np.ndarray:
            return combine_snapshots(self.series, self.layout, coefficients)

        soup, _ = greedy_soup(len(self.series), lambda coefficients: -self.loss(mean(coefficients)))
        chosen = f"{np.count_nonzero(soup)} of {len(self.series)} snapshots"
        return Entry(self.with_weights(mean(soup)), self.at, chosen)

    def best_rate(self, search: str) -> Entry:
        """A search with a rate, at the rate that ``val`` chooses."""
        rates, window = [factor * self.two.learning_rate for factor in RATE_FACTORS], self.chosen_window()
        tried = [self.search(window, PUBLISHED | {"search": search, "learning_rate": rate}) for rate in rates]
        best = int(np.argmin([found.val_loss for found in tried]))
        return self.entry(tried[best], f"rate {rates[best]:g}, ")

    def published(self) -> Entry:
        """The published search on train."""
        return self.entry(self.search(self.chosen_window(), PUBLISHED))

    def search_on_val(self) -> Entry:
        """The same on val, which sees as many images as a search on train."""
        n_epochs = max(1, round(self.two.n_epochs * self.train.n_images / self.val.n_images))
        options = PUBLISHED | {"search_split": "val", "epochs": n_epochs}
        return self.entry(self.search(self.chosen_window(), options))

    def continued(self, basis: Basis | None = None, **options: Any) -> Entry:
        """The search with the continued residual, from the best window."""
        window = self.chosen_window()
        factor = self.two.residual_factor_from(window.name)
        options = {"residual": "continued", "search_split": "train"} | options
        return self.entry(self.search(window, options, factor=factor, basis=basis), f"{window.name}, ")

    def continued_random(self) -> Entry:
        """The same in random directions."""
        return self.continued(RandomBasis.like(self.basis(basis_kind(self.two)), self.one.seed))

    def cooldown(self) -> Entry:
        """A plain cooldown that costs as much, from the start and at the rate that ``val`` chooses."""
        window, tried = self.chosen_window(), {}
        options = {"residual": "continued", "n_components": 0, "search_split": "train", "epochs": self.equal_passes()}
        for start in {"last": Start("last", 1.0, self.last, Cost()), window.name: window}.values():
            for factor in COOLDOWN_FACTORS:
                tried[f"{start.name}, {factor:.2g} of the rate, "] = self.search(start, options, factor=factor)
        best = min(tried, key=lambda name: tried[name].val_loss)
        return self.entry(tried[best], best)

    def plain_for_total(self) -> Entry:
        """Plain training whose schedule was made for the same total; the peak that ``val`` chose on the first seed."""
        total, kept = self.at + self.equal_passes(), self.earlier_choice("plain_for_total")
        peaks = [factor * self.one.schedule.peak for factor in PEAK_FACTORS] if kept is None else [kept]
        tried = [self.plain(total, peak) for peak in peaks]
        best = int(np.argmin([found.val_loss for found in tried]))
        return Entry(tried[best].arrays, tried[best].passes, f"peak {peaks[best]:g}", peaks[best])

    def plain_to_the_end(self) -> Entry:
        """Plain training to the end of stage 1's own schedule, optimizer state included."""
        found = self.to_the_end()
        return Entry(found.arrays, self.at + found.passes)

    def equal_passes(self) -> int:
        """Epochs of ordinary training that cost what ``continued`` cost here, rounded up; stage 2's without it."""
        path = self.folder / "continued.json"
        if not path.exists():
            return self.two.n_epochs
        return math.ceil(json.loads(path.read_text(encoding="utf-8"))["passes"] - self.at - 1e-9)

    def earlier_choice(self, method: str) -> float | None:
        """What ``val`` chose on the first seed that was compared at this epoch; it is kept for the others."""
        others = sorted(self.folder.parent.parent.glob(f"seed_*/{self.folder.name}/{method}.json"))
        return json.loads(others[0].read_text(encoding="utf-8"))["choice"] if others else None


METHODS: dict[str, Callable[[Comparison], Entry]] = {
    "last": Comparison.last_weights,
    "swa": Comparison.average,
    "best_window": Comparison.best_window,
    "greedy_soup": Comparison.greedy_soup,
    "trainable_averaging": lambda comparison: comparison.best_rate("average"),
    "projected_sgd": lambda comparison: comparison.best_rate("sgd"),
    "p_bfgs_train": Comparison.published,
    "p_bfgs_val": Comparison.search_on_val,
    "continued": Comparison.continued,
    "continued_random": Comparison.continued_random,
    "continued_alone": lambda comparison: comparison.continued(n_components=0),
    "cooldown": Comparison.cooldown,
    "plain_for_total": Comparison.plain_for_total,
    "plain_to_the_end": Comparison.plain_to_the_end,
}
