"""Stage 2 beside what it has to beat, from the same stage 1: ``dimred compare``.

Every method has stage 1 up to one epoch: its full checkpoint and its snapshots. BatchNorm is re-estimated in every row.
The split ``val`` chooses, the split ``test`` reports. What is finished is a file in the output folder and is not run
again.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.build.comparable import check_comparable, check_rows, claim_folder
from dimred.build.from_stage_1 import Arrays, Found, StageOneSoFar
from dimred.build.preflight import basis_kind
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.console import doing, note
from dimred.errors import ConfigError
from dimred.evaluate.averages import average_snapshots, combine_snapshots
from dimred.evaluate.evaluator import Cost
from dimred.files.atomic import atomic_write
from dimred.files.run_names import CONFIG, STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS, full_checkpoints
from dimred.merging.search import greedy_soup
from dimred.report.comparison import collect, markdown
from dimred.report.comparison_page import write_comparison_page
from dimred.run.device import set_up
from dimred.search.basis_check import Basis, RandomBasis
from dimred.weights.checkpoint_io import write_checkpoint

RATE_FACTORS = (0.1, 1.0, 10.0)  # of the configured learning_rate
COOLDOWN_FACTORS = (1 / 3, 1.0)  # of the rate that stage 1 ended with
PEAK_FACTORS = (0.5, 1.0, 2.0)  # of stage 1's peak
ALONE: dict[str, Any] = {"n_components": 0, "search": "bfgs"}  # without directions
_AS_LONG_AS_CONTINUED = {"cooldown", "plain_for_total"}  # what stage 2's directions cost is known once it has run
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


def compare(
    data: str | os.PathLike[str],
    runs: Iterable[str | os.PathLike[str]],
    config: str | os.PathLike[str],
    out: str | os.PathLike[str] = "comparison",
    *,
    methods: Sequence[str] | None = None,
    at: Iterable[int] = (),
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Compare stage 2 with averages of the same snapshots and with plain training, from finished stage 1 runs.

    Args:
        data: folder with train/, val/ and test/; ``{seed}`` in it stands for a run's seed.
        runs: folders of stage 1 runs, one a seed.
        config: stage 2's YAML file, or the name of a recipe.
        out: folder for the results, ``compare.json``, ``compare.md`` and ``compare.html``.
        methods: names from ``METHODS``; all of them by default.
        at: epochs at which stage 1 is taken to end; its last by default.
        overrides: ``key=value``, over the configuration.

    Returns:
        What ``compare.json`` holds, see ``dimred.report.comparison.collect``.

    Raises:
        DataError: a split is missing.
        ConfigError: an argument is not allowed; a run is of another network, or has not kept what is needed.
    """
    epochs = sorted(set(at))
    check_choice(methods, epochs)
    runs = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    if not runs:
        raise ConfigError("no RUN is given; give folders of finished stage 1 runs, one a seed")
    two, folder = load_config(StageTwoConfig, Path(config), overrides), Path(out)
    chosen, seeds = methods or list(METHODS), dict[int, Path]()
    jobs = [job for run in runs for job in _jobs(str(data), Path(run), two, epochs, folder, chosen, seeds)]
    claim_folder(folder, two)
    for job in jobs:
        job()
    summary = collect(folder)
    atomic_write(folder / "compare.json", json.dumps(summary, indent=2) + "\n")
    atomic_write(folder / "compare.md", markdown(summary))
    write_comparison_page(folder, summary)
    return summary


def check_choice(methods: Sequence[str] | None, epochs: Sequence[int]) -> None:
    """Whether the methods exist and the epochs can; ConfigError names the first that doesn't."""
    if unknown := [name for name in methods or () if name not in METHODS]:
        raise ConfigError(f"--methods has {unknown[0]!r}; allowed: {', '.join(METHODS)}")
    if epochs and epochs[0] < 1:
        raise ConfigError(f"--at has {epochs[0]}; give epochs from 1 on")


def _jobs(
    data: str,
    run: Path,
    two: StageTwoConfig,
    epochs: Sequence[int],
    out: Path,
    methods: Sequence[str],
    seeds: dict[int, Path],
) -> Iterator[Callable[[], None]]:
    """What is to be done for one stage 1, after checking that it can be."""
    if (run / STAGE_2_CHECKPOINTS).is_dir():
        raise ConfigError(f"RUN is {str(run)!r}, a run of stage 2; give the folder of the stage 1 that it began from")
    if not (run / CONFIG).is_file():
        raise ConfigError(f"RUN is {str(run)!r}, which has no {CONFIG}; give the folder of a finished stage 1 run")
    one = load_config(StageOneConfig, run / CONFIG)
    if (other := seeds.setdefault(one.seed, run)) is not run:
        raise ConfigError(f"RUN is {str(run)!r}, of seed {one.seed}, which {str(other)!r} has too; give one run a seed")
    ended = max(full_checkpoints(run / STAGE_1_CHECKPOINTS), default=0) if one.stop else one.epochs
    for at in epochs or [ended]:
        goes_on = at < (one.schedule.last_epoch or 0)
        own, place = Path(data.replace("{seed}", str(one.seed))), out / f"seed_{one.seed}" / f"at_{at}"
        check_rows(place, own, run)
        wanted = set(methods) - (set() if goes_on else {"plain_to_the_end"})
        wanted |= {"continued"} if two.n_components > 0 and wanted & _AS_LONG_AS_CONTINUED else set()
        missing = [name for name in METHODS if name in wanted and not (place / f"{name}.json").exists()]
        if missing:
            n_components = check_comparable(own, run, one, two, at, missing)
            searching = two.model_copy(update={"seed": one.seed})
            begin = partial(Comparison, own, run, one, searching, at, n_components, place)
            yield partial(_run, one.seed, begin, missing)


def _run(seed: int, begin: Callable[[], "Comparison"], missing: Sequence[str]) -> None:
    """Run these methods; each leaves ``METHOD.json`` and ``METHOD.ckpt``."""
    set_up(seed)
    comparison = begin()
    out, n_images = comparison.folder, comparison.train.n_images
    out.mkdir(parents=True, exist_ok=True)
    for method in missing:
        note(f"seed {seed}: {method}")
        doing(f"seed {seed}: {method}")
        cost = comparison.evaluator.cost = Cost()
        started, spent = time.perf_counter(), comparison.seconds_shared
        entry = METHODS[method](comparison)
        seconds = time.perf_counter() - started - (comparison.seconds_shared - spent)
        record = {
            "method": method, "seed": seed, "at": comparison.at, "data": str(comparison.data.resolve()),
            "run": str(comparison.run.resolve()), "metric": comparison.two.metric_name,
            "batch_norm": comparison.evaluator.on.has_batch_norm,
            "passes": entry.passes, "chosen": entry.chosen, "choice": entry.choice,
            "forward_epochs": cost.forward / n_images, "backward_epochs": cost.backward / n_images,
            "seconds": seconds, **comparison.evaluator.report(entry.arrays),
        }  # fmt: skip
        write_checkpoint(out / f"{method}.ckpt", entry.arrays)
        atomic_write(out / f"{method}.json", json.dumps(record, indent=2) + "\n")


class Comparison(StageOneSoFar):
    """The methods.

    Args:
        data, run, one, two, at: as ``StageOneSoFar``.
        n_components: of the rows with directions, also where ``two`` has none.
        folder: where the results of this seed at this epoch are.
    """

    def __init__(
        self, data: Path, run: Path, one: StageOneConfig, two: StageTwoConfig, at: int, n_components: int, folder: Path
    ):
        self.folder, self.has_directions = folder, two.n_components > 0
        super().__init__(data, run, one, two.model_copy(update={"n_components": n_components}), at)

    def entry(self, found: Found, chosen: str) -> Entry:
        """A search from here as an entry; ``chosen``: where it began, or at what rate."""
        return Entry(found.arrays, self.at + found.passes, f"{chosen}: {found.kept}")

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
        return self.entry(tried[best], f"rate {rates[best]:g}")

    def published(self) -> Entry:
        """The published search on train."""
        window = self.chosen_window()
        return self.entry(self.search(window, PUBLISHED), f"from {window.name}")

    def search_on_val(self) -> Entry:
        """The same on val, which sees as many images as a search on train."""
        n_epochs = max(1, round(self.two.n_epochs * self.train.n_images / self.val.n_images))
        window, options = self.chosen_window(), PUBLISHED | {"search_split": "val", "epochs": n_epochs}
        return self.entry(self.search(window, options), f"from {window.name}")

    def continued(self, basis: Basis | None = None, **options: Any) -> Entry:
        """The search with the continued residual, from the last weights or the best window as configured."""
        window = self.chosen_window()
        start = self.last_start() if self.two.start == "last" else window
        options = {"residual": "continued", "search_split": "train"} | options
        return self.entry(self.search(start, options, basis), f"from {start.name}")

    def continued_random(self) -> Entry:
        """The same in random directions."""
        return self.continued(RandomBasis.like(self.basis(basis_kind(self.two)), self.one.seed))

    def cooldown(self) -> Entry:
        """A plain cooldown that costs as much, from the start and at the rate that ``val`` chooses."""
        window, tried = self.chosen_window(), {}
        options = ALONE | {"residual": "continued", "search_split": "train", "epochs": self.equal_passes()}
        for start in {"last": self.last_start(), window.name: window}.values():
            for factor in COOLDOWN_FACTORS:
                found = self.search(start, options | {"residual_factor": factor})
                tried[f"from {start.name}, {factor:.2g} of the rate"] = found
        best = min(tried, key=lambda name: tried[name].val_loss)
        return self.entry(tried[best], best)

    def plain_for_total(self) -> Entry:
        """Plain training whose schedule was made for the same total; the peak that ``val`` chose on the first seed."""
        total, kept = self.at + self.equal_passes(), self.earlier_choice("plain_for_total")
        peaks = [factor * self.one.schedule.peak for factor in PEAK_FACTORS] if kept is None else [kept]
        peak, found = self.plain(total, peaks)
        return Entry(found.arrays, found.passes, f"peak {peak:g}", peak)

    def plain_to_the_end(self) -> Entry:
        """Plain training to the end of stage 1's own schedule, optimizer state included."""
        found = self.to_the_end()
        return Entry(found.arrays, self.at + found.passes)

    def equal_passes(self) -> int:
        """Epochs of ordinary training that cost what stage 2 cost here: with directions ``continued``'s, rounded up."""
        if not self.has_directions:
            return self.two.n_epochs
        continued = json.loads((self.folder / "continued.json").read_text(encoding="utf-8"))
        return math.ceil(continued["passes"] - self.at - 1e-9)

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
    "continued_alone": lambda comparison: comparison.continued(**ALONE),
    "cooldown": Comparison.cooldown,
    "plain_for_total": Comparison.plain_for_total,
    "plain_to_the_end": Comparison.plain_to_the_end,
}
