"""The tables of the study of the directions after AdamW, from the folder ``after_adamw`` beside this file; seconds.

    python -m tests.studies.after_adamw

A file has, of every network of a task and seed, the trained loss on each sample of ``val``, and which samples of
``test`` were right or, of a text, their losses. Scores are test accuracy in percent, or minus a hundred times the loss.
The lowest mean loss on ``val`` chooses an average. The column ``counts`` is by the rule of ``admission``.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.studies.admission import Verdict, in_words, judge

STORE = Path(__file__).parent / "after_adamw"
TASKS = {"photos": "photographs", "source": "source code"}
TUNING_SEED = 6
SEARCH = "search, 32 directions"
SEARCH_OF_MEANS = "search, 32 directions of the means"
AVERAGE, AVERAGE_OF_MEANS = "best average", "best average of means"
ROWS = (
    "last weights",
    SEARCH,
    "search, 3 directions",
    "search, 32 random directions",
    "cooldown",
    AVERAGE,
    "cosine",
    SEARCH_OF_MEANS,
    AVERAGE_OF_MEANS,
)
RIVALS = ("last weights", "cooldown", AVERAGE, "cosine", "search, 3 directions", "search, 32 random directions")
MEANS = ((AVERAGE_OF_MEANS, AVERAGE), (AVERAGE_OF_MEANS, "cooldown"), (SEARCH_OF_MEANS, SEARCH))
_FILE = re.compile(r"(?P<task>[a-z]+)_(?P<seed>\d+)\.npz")


class Network(NamedTuple):
    """A measured network."""

    name: str
    passes: float
    val_loss: float
    test: float


class Search(NamedTuple):
    """The course of a search.

    Attributes:
        explained: the fraction of the snapshots' variance along each direction; empty for random ones.
    """

    passes: float
    n_steps: float
    n_accepted: float
    moved_inside: float
    moved_outside: float
    captured: float  # mean fraction of the gradient's square that is in the subspace
    explained: np.ndarray


class Run(NamedTuple):
    """A task and seed."""

    task: str
    seed: int
    networks: dict[str, Network]
    searches: dict[str, Search]

    def rows(self) -> dict[str, Network]:
        """Return the network of each row; an average is the best of its windows on ``val``."""
        found = {name: one for name, one in self.networks.items() if name in ROWS}
        for row, content in ((AVERAGE, "points, "), (AVERAGE_OF_MEANS, "means, ")):
            windows = [one for name, one in self.networks.items() if name.startswith(content)]
            found[row] = min(windows, key=lambda one: one.val_loss)
        return found


def read(path: Path) -> Run:
    """Read a file of the store."""
    place = _FILE.fullmatch(path.name)
    assert place is not None
    with np.load(path, allow_pickle=False) as stored:
        names = stored["names"].tolist()
        val = stored["val_losses"].astype(np.float64).mean(1).tolist()
        if "test_losses" in stored:
            test = (-100 * stored["test_losses"].astype(np.float64).mean(1)).tolist()
        else:
            test = (100 * np.unpackbits(stored["test_correct"], 1, count=int(stored["n_test"])).mean(1)).tolist()
        columns = zip(names, stored["passes"].tolist(), val, test, strict=True)
        networks = {name: Network(name, *values) for name, *values in columns}
        searches = {
            name: Search(*stored[f"{name}: search"].tolist(), stored[f"{name}: explained"])
            for name in names
            if f"{name}: search" in stored
        }
    return Run(place["task"], int(place["seed"]), networks, searches)


def load(store: Path) -> list[Run]:
    """Read all files of a store, in the order of tasks and seeds."""
    runs = [read(path) for path in store.glob("*.npz") if _FILE.fullmatch(path.name)]
    return sorted(runs, key=lambda run: (list(TASKS).index(run.task), run.seed))


def of_tasks(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group the runs by task, without those that chose the rates."""
    return {
        task: [run for run in runs if run.task == task and run.seed != TUNING_SEED]
        for task in TASKS
        if any(run.task == task and run.seed != TUNING_SEED for run in runs)
    }


def score_table(tasks: Mapping[str, Sequence[Run]]) -> str:
    """Tabulate the score of each row, mean ± standard deviation over the seeds."""
    heads = list[str]()
    for task, runs in tasks.items():
        noun = "seed" if len(runs) == 1 else "seeds"
        heads.append(f"{TASKS[task]}, {noun} {', '.join(str(run.seed) for run in runs)}")
    lines = ["| | passes | " + " | ".join(heads) + " |", "|---|---:|" + "---:|" * len(heads)]
    for row in ROWS:
        passes = [f"{np.mean([run.rows()[row].passes for run in runs]):.1f}" for runs in tasks.values()]
        cells = []
        for runs in tasks.values():
            scores = np.array([run.rows()[row].test for run in runs])
            spread = f" ± {scores.std(ddof=1):.2f}" if len(scores) > 1 else ""
            cells.append(f"{scores.mean():.2f}{spread}")
        lines.append(f"| {row} | {', '.join(dict.fromkeys(passes))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def difference_table(tasks: Mapping[str, Sequence[Run]], pairs: Sequence[tuple[str, str]]) -> str:
    """Tabulate one row less another, paired by seed, mean ± standard error, and what counts."""
    lines = [
        "| | " + " | ".join(TASKS[task] for task in tasks) + " | counts |",
        "|---|" + "---:|" * len(tasks) + "---|",
    ]
    for ours, theirs in pairs:
        cells, verdicts = [], dict[str, Verdict]()
        for task, runs in tasks.items():
            rows = [run.rows() for run in runs]
            both = np.array([(of_run[ours].test, of_run[theirs].test) for of_run in rows])
            passes = np.mean([(of_run[ours].passes, of_run[theirs].passes) for of_run in rows], axis=0)
            more = both[:, 0] - both[:, 1]
            spread = f" ± {more.std(ddof=1) / len(more) ** 0.5:.2f}" if len(more) > 1 else ""
            cells.append(f"{more.mean():+.2f}{spread}")
            verdicts[TASKS[task]] = judge(both[:, 0], both[:, 1], *passes)
        lines.append(f"| {ours} less {theirs} | {' | '.join(cells)} | {in_words(verdicts)} |")
    return "\n".join(lines)


def run_table(tasks: Mapping[str, Sequence[Run]]) -> str:
    """Tabulate the scores of each run, and which windows ``val`` chose."""
    lines = ["| run | " + " | ".join(ROWS) + " | windows |", "|---|" + "---:|" * len(ROWS) + "---|"]
    for task, runs in tasks.items():
        for run in runs:
            rows = run.rows()
            cells = " | ".join(f"{rows[row].test:.2f}" for row in ROWS)
            windows = ", ".join(rows[row].name for row in (AVERAGE, AVERAGE_OF_MEANS))
            lines.append(f"| {TASKS[task]}, seed {run.seed} | {cells} | {windows} |")
    return "\n".join(lines)


def search_table(tasks: Mapping[str, Sequence[Run]]) -> str:
    """Tabulate the course of each search, in the mean over the seeds."""
    lines = [
        "| task | search | steps | accepted | moved inside | outside | gradient inside, % | variance in 1, 3 and 32 "
        "directions, % |",
        "|---|---|" + "---:|" * 6,
    ]
    for task, runs in tasks.items():
        for name in (row for row in ROWS if row.startswith("search")):
            found = [run.searches[name] for run in runs]
            numbers = [np.mean([getattr(one, field) for one in found]) for field in Search._fields[1:5]]
            steps, accepted, inside, outside = numbers
            captured = 100 * np.mean([one.captured for one in found])
            ratios = np.mean([one.explained for one in found], axis=0)
            explained = ", ".join(f"{100 * ratios[:k].sum():.1f}" for k in (1, 3, 32)) if len(ratios) else ""
            cells = f"{steps:.0f} | {accepted:.0f} | {inside:.3g} | {outside:.3g} | {captured:.2g} | {explained}"
            lines.append(f"| {TASKS[task]} | {name} | {cells} |")
    return "\n".join(lines)


def rate_table(run: Run) -> str:
    """Tabulate the losses on ``val``, and the scores, by which the rates were chosen."""
    lines = ["| training | loss on val | test |", "|---|---:|---:|"]
    lines += [f"| {one.name} | {one.val_loss:.4f} | {one.test:.2f} |" for one in run.networks.values()]
    return "\n".join(lines)


def main() -> None:
    runs = load(STORE)
    tasks = of_tasks(runs)
    tables = [
        score_table(tasks),
        difference_table(tasks, [(SEARCH, rival) for rival in RIVALS]),
        difference_table(tasks, MEANS),
        run_table(tasks),
        search_table(tasks),
        *(rate_table(run) for run in runs if run.seed == TUNING_SEED),
    ]
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
