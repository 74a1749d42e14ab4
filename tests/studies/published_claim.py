"""The tables of the published claim, from the store of ``claim_runs.py`` of commit 741df3b6; seconds.

    python -m tests.studies.published_claim STORE         # tests/studies/claims/published or .../constant
    python -m tests.studies.published_claim STORE --again OTHER   # beside what ``claim_again`` has run since

STORE holds ``TASK_SEED.npz``. Scores are test accuracy in percent, of a text minus a hundred times the loss, with
BatchNorm re-estimated. ``val`` chooses the average by the loss that was trained. A difference is paired by seed, with
its standard error.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.studies.admission import Verdict, in_words, judge

TITLES = {
    "fashion": "Fashion-MNIST",
    "letter": "letters",
    "satimage": "satellite",
    "source": "source code",
    "digits": "digits",
    "noisy": "wrong labels",
    "photos": "photographs",
}
SEARCH = "the search as published, 2 epochs"
FILE = re.compile(r"(?P<task>[a-z]+)_(?P<seed>\d+)\.npz")
_AVERAGE = re.compile(r"(uniform|linear) of \d+ snapshots.*")


class Measured(NamedTuple):
    """A network of one run."""

    name: str
    passes: float
    val_loss: float
    test: float
    as_trained: float  # the same before BatchNorm is re-estimated
    moved: tuple[float, float]  # inside and outside the subspace


Rows = dict[str, Measured]  # by title


class Stored(NamedTuple):
    """All networks of one task and seed."""

    task: str
    seed: int
    networks: list[Measured]

    def table_rows(self) -> Rows:
        """Return what the tables show, by title."""
        found = {one.name: one for one in self.networks}
        ends = sorted((one for one in self.networks if one.name.startswith("plain ")), key=lambda one: one.passes)
        last = {one.partition(" ")[0]: one for one in found if one.startswith(("search ", "cooldown "))}
        averages = [ends[0], *(one for one in self.networks if _AVERAGE.fullmatch(one.name))]
        rows = {f"plain training, epoch {one.passes:.0f}": one for one in ends[:1]}
        rows[SEARCH] = found[last["search"]]
        if "cooldown" not in last:  # of ``claim_again``
            return rows
        rows["cooldown of 2 epochs"] = found[last["cooldown"]]
        rows["best average of the snapshots"] = min(averages, key=lambda one: one.val_loss)
        rows |= {f"plain training, {one.name} passes": one for one in self.networks if one.name.startswith("made for ")}
        return rows | {f"plain training, epoch {one.passes:.0f}": one for one in ends[1:]}


def read(path: Path) -> Stored:
    """Read a file of the store."""
    place = FILE.fullmatch(path.name)
    assert place is not None
    with np.load(path, allow_pickle=False) as stored:
        if "test_losses" in stored:
            test, sign = -100 * stored["test_losses"].astype(np.float64).mean(1), -100
        else:
            sign = 100
            test = 100 * np.unpackbits(stored["test_correct"], 1, count=int(stored["n_test"])).mean(1)
        columns = (stored[key].tolist() for key in ("names", "passes", "val_losses"))
        rest = test.tolist(), (sign * stored["as_trained"]).tolist(), map(tuple, stored["moved"].tolist())
        networks = [Measured(*values) for values in zip(*columns, *rest, strict=True)]
    return Stored(TITLES[place["task"]], int(place["seed"]), networks)


def load(store: Path) -> list[Stored]:
    """Read all files of a store, with the tasks whose data are others' first."""
    order = list(TITLES.values())
    runs = [read(path) for path in store.glob("*.npz") if FILE.fullmatch(path.name)]
    return sorted(runs, key=lambda run: (order.index(run.task), run.seed))


def tables(runs: Sequence[Stored]) -> list[str]:
    """Return all tables."""
    return [score_table(runs), difference_table(runs), run_table(runs), median_table(runs)]


def score_table(runs: Sequence[Stored]) -> str:
    """Tabulate the score of each row and task, mean ± standard deviation over the seeds, and the passes."""
    tasks, rows = list(dict.fromkeys(run.task for run in runs)), [run.table_rows() for run in runs]
    seeds = {task: [run.seed for run in runs if run.task == task] for task in tasks}
    heads = [f"{task}, seed{'s' * (len(seeds[task]) > 1)} {', '.join(map(str, seeds[task]))}" for task in tasks]
    lines = ["| | passes | " + " | ".join(heads) + " |", "|---|---:|" + "---:|" * len(tasks)]
    for title in rows[0]:
        passes = np.mean([of_run[title].passes for of_run in rows if title in of_run])
        scores = {task: [of_run[title].test for of_run in _of_task(runs, rows, task, title)] for task in tasks}
        cells = [_text(scores[task], 1.0, "{:.2f}") for task in tasks]
        lines.append(f"| {title} | {passes:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def difference_table(runs: Sequence[Stored]) -> str:
    """Tabulate by how much the search is ahead of each other row, paired, ± standard error, and what of it counts."""
    tasks, rows = list(dict.fromkeys(run.task for run in runs)), [run.table_rows() for run in runs]
    lines = ["| the search less | " + " | ".join(tasks) + " | counts |", "|---|" + "---:|" * len(tasks) + "---|"]
    for title in (one for one in rows[0] if one != SEARCH):
        pairs = {task: _of_task(runs, rows, task, title) for task in tasks}
        gains = {task: [of_run[SEARCH].test - of_run[title].test for of_run in pairs[task]] for task in tasks}
        cells = [_text(gains[task], len(gains[task]) ** 0.5, "{:+.2f}") for task in tasks]
        counts = in_words({task: compare_rows(pairs[task], SEARCH, title) for task in tasks})
        lines.append(f"| {title} | {' | '.join(cells)} | {counts} |")
    return "\n".join(lines)


def compare_rows(rows: Sequence[Rows], ours: str, theirs: str) -> Verdict:
    """Compare two rows by the rule, over the runs that have both."""
    both = [(of_run[ours], of_run[theirs]) for of_run in rows if ours in of_run and theirs in of_run]
    if not both:
        return Verdict.LEVEL
    scores, passes = ([[getattr(one, what) for one in pair] for pair in both] for what in ("test", "passes"))
    return judge(*np.transpose(scores), *np.mean(passes, axis=0))


def _of_task(runs: Sequence[Stored], rows: Sequence[Rows], task: str, title: str) -> list[Rows]:
    """Return the rows of the runs of a task that have a row of this title."""
    return [of_run for run, of_run in zip(runs, rows, strict=True) if run.task == task and title in of_run]


def run_table(runs: Sequence[Stored]) -> str:
    """Tabulate each run: the search before and after BatchNorm is re-estimated, how far it moved, and the averages."""
    lines = [
        "| run | plain, as trained | search, as trained | moved inside, outside | kept average |",
        "|---|---:|---:|---:|---|",
    ]
    for run in runs:
        rows = run.table_rows()
        first, search = next(iter(rows.values())), rows[SEARCH]
        moved = ", ".join(f"{one:.3g}" for one in search.moved)
        name = rows["best average of the snapshots"].name
        cells = f"{first.as_trained:.2f} | {search.as_trained:.2f} | {moved} | {name}"
        lines.append(f"| {run.task}, seed {run.seed} | {cells} |")
    return "\n".join(lines)


def again_table(stored: Sequence[Stored], again: Sequence[Stored]) -> str:
    """Tabulate the search beside its own earlier run, and the standard deviation over the seeds of that."""
    lines = [
        "| run | before the search | again | the search | again | moved | spread of the seeds | gain | again |",
        "|---|" + "---:|" * 8,
    ]
    for new in again:
        of_task = [list(run.table_rows().values())[:2] for run in stored if run.task == new.task]
        [(plain, search)] = [list(run.table_rows().values())[:2] for run in stored if run[:2] == new[:2]]
        plain_again, search_again = list(new.table_rows().values())[:2]
        spread = np.std([row[1].test for row in of_task], ddof=1)
        cells = f"{plain.test:.2f} | {plain_again.test:.2f} | {search.test:.2f} | {search_again.test:.2f}"
        gains = f"{search.test - plain.test:+.2f} | {search_again.test - plain_again.test:+.2f}"
        moved = f"{search_again.test - search.test:+.2f} | {spread:.2f}"
        lines.append(f"| {new.task}, seed {new.seed} | {cells} | {moved} | {gains} |")
    return "\n".join(lines)


def median_table(runs: Sequence[Stored]) -> str:
    """Tabulate the median less the mean of the same snapshots, over all windows and seeds of a task."""
    lines = [
        "| task | windows | loss on val, mean | test, mean | test, standard deviation | test, largest |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for task in dict.fromkeys(run.task for run in runs):
        pairs = [pair for run in runs if run.task == task for pair in _means_and_medians(run)]
        if not pairs:
            continue
        losses = np.mean([median.val_loss - mean.val_loss for mean, median in pairs])
        gains = np.array([median.test - mean.test for mean, median in pairs])
        spread = f"{gains.std():.2f} | {np.abs(gains).max():.2f}"
        lines.append(f"| {task} | {len(pairs)} | {losses:+.4f} | {gains.mean():+.2f} | {spread} |")
    return "\n".join(lines)


def _means_and_medians(run: Stored) -> list[tuple[Measured, Measured]]:
    found = {one.name: one for one in run.networks}
    return [(found[name.replace("median", "uniform")], one) for name, one in found.items() if name[:6] == "median"]


def _text(values: Sequence[float], divisor: float, form: str) -> str:
    """Return the mean, with the standard deviation divided by ``divisor`` where there are several values."""
    if len(values) < 2:
        return form.format(*values) if values else ""
    return f"{form.format(np.mean(values))} ± {np.std(values, ddof=1) / divisor:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--again", type=Path)
    given = parser.parse_args()
    stored = load(given.store)
    print("\n\n".join(tables(stored) if given.again is None else [again_table(stored, load(given.again))]))


if __name__ == "__main__":
    main()
