"""The tables of the study of the end of training, from what ``end_rule_runs.py`` stored; seconds, without MindSpore.

    python -m tests.studies.end_rule                    # the tables, from the folder end_rule beside this file
    python -m tests.studies.end_rule --keep OUT/store   # fill that folder: losses on val, and what was right on test

A is what the study of choices found in its folder ``choices``: a tenth of all passes from half of the rate, and a
choice among about ten networks. B (linear) and C (1 - sqrt) take a fifth from the whole of the rate, and have two
candidates: the end, and the best of few averages. The lowest mean of the trained loss on ``val`` chooses.
"""

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.benchmarks import choice_rules, stored_choices

HERE = Path(__file__).parent
STORE = HERE / "end_rule"
CHOICES = HERE.parent / "benchmarks" / "choices"
BUDGETS = {22: 25, 36: 40, 69: 78}  # epochs of stage 1 of B and C -> those of A, which trains for as many in all
PASSES = {22: 30, 36: 45, 69: 89}  # the names of the budgets
CURVES = {"B": "linear", "C": "1-sqrt"}
RIVALS = ("plain", "schedule_free", "schedule_free_rate_2")
TASKS = {
    "photos": "photographs", "noisy": "wrong labels", "satimage": "satellite pixels", "letter": "letters",
    "fashion": "Fashion-MNIST", "digits": "digits",
}  # fmt: skip
N_TRAIN = {"photos": 4800, "noisy": 4788, "satimage": 3435, "letter": 15_000, "fashion": 10_000, "digits": 4788}
CHECKED = 25  # an epoch whose last weights both studies have
N_VAL = 1000
ALL = 0  # in a list of lengths: all snapshots
LISTS = {  # lengths of the averages that A could choose among, beside its last epoch and the mean of its epochs
    "3 to 34": (3, 5, 8, 13, 21, 34),
    "3 to 55": (3, 5, 8, 13, 21, 34, 55),
    "3 to 34, all": (3, 5, 8, 13, 21, 34, ALL),
    "8, 13, 21, all": (8, 13, 21, ALL),
    "13, all": (13, ALL),
    "none": (),
}
SLACK = 0.1  # points by which a rule may be behind A in the mean of a task
_FILE = re.compile(r"(?P<task>[a-z]+)_(?P<seed>\d+)_(?P<at>\d+)\.npz")

_WINDOW = re.compile(r"uniform of (\d+) snapshots, steps \d+ to (\d+)")


class Run(NamedTuple):
    """What a task, a seed and a budget have: the mean trained loss on ``val`` and the accuracy on ``test`` by name."""

    task: str
    seed: int
    at: int
    n_images: int  # forwarded to measure a candidate
    losses: dict[str, float]
    test: dict[str, float]  # percent

    @property
    def averages(self) -> list[str]:
        return [name for name in self.losses if name.startswith("uniform ")]

    def best_average(self) -> str:
        return min(self.averages, key=lambda name: self.losses[name])

    def chosen(self, rule: str) -> str | None:
        """Return the name of what B or C keeps; None if its end was not run."""
        end = CURVES[rule]
        if end not in self.losses:
            return None
        return min(end, self.best_average(), key=lambda name: self.losses[name])

    @property
    def epochs_to_choose(self) -> float:
        """Return what measuring the end and all averages costs; a forward pass counts a third of a training one."""
        return (1 + len(self.averages)) * self.n_images / 3 / N_TRAIN[self.task]


def kept(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what is kept of a file of outputs: losses on ``val`` as float16, and which samples were right."""
    logits, labels = stored["val_logits"].astype(np.float64), stored["val_labels"]
    arrays = {"names": stored["names"], "n_images": stored["n_images"]}
    for name in ("trained", "entropy"):
        arrays[f"val_{name}"] = stored_choices.LOSSES[name](logits, labels).astype(np.float16)
    for split in ("val", "test"):
        right = stored[f"{split}_logits"].argmax(-1) == stored[f"{split}_labels"]
        arrays |= {f"{split}_correct": np.packbits(right, 1), f"n_{split}": np.array(right.shape[1])}
    return arrays


def read(path: Path) -> Run:
    """Read a file of the folder, and beside it the end of the linear cooldown if the study of choices has that."""
    place = _FILE.fullmatch(path.name)
    assert place is not None
    task, seed, at = place["task"], int(place["seed"]), int(place["at"])
    with np.load(path, allow_pickle=False) as stored:
        names, n_images = stored["names"].tolist(), int(stored["n_images"])
        losses = stored["val_trained"].astype(np.float64).mean(1)
        test = 100 * np.unpackbits(stored["test_correct"], 1, count=int(stored["n_test"])).mean(1)
    run = Run(task, seed, at, n_images, dict(zip(names, losses, strict=True)), dict(zip(names, test, strict=True)))
    elsewhere = CHOICES / f"{task}_{seed}_{at + -(-at // 4)}_fifth.npz"
    if "linear" not in run.losses and elsewhere.exists():
        found = stored_choices.read(elsewhere, N_VAL)
        run.losses["linear"] = float(found.losses["trained"].mean())
        run.test["linear"] = float(found.test[0])
    return run


def earlier(runs: Iterable[Run]) -> dict[tuple[str, int, int], dict[str, float]]:
    """Return what A kept, and the rivals: (task, seed, B and C's epochs of stage 1) -> name -> accuracy."""
    found = {}
    for run in runs:
        start = f"{run.task}_{run.seed}_"
        paths = [path for path in sorted(CHOICES.glob(f"{start}*.npz")) if stored_choices.FILE.fullmatch(path.name)]
        rivals = [stored_choices.read(path, N_VAL) for path in paths if path.stem.endswith(RIVALS)]
        stored = stored_choices.read(CHOICES / f"{start}{BUDGETS[run.at]}.npz", N_VAL)
        [result] = choice_rules.results([stored], rivals)
        values = {name: result.values[name] for name in RIVALS if name in result.values}
        found[run.task, run.seed, run.at] = values | {"A": result.values["stage 2"]}
    return found


class Cell(NamedTuple):
    """A task and a budget: the accuracies of each rule and rival by seed."""

    task: str
    at: int
    by_seed: dict[int, dict[str, float]]
    runs: list[Run]

    def values(self, name: str, beside: str | None = None) -> np.ndarray:
        """Return the accuracies of a rule, or the differences to another one, over the seeds that have both."""
        needed = [name] if beside is None else [name, beside]
        rows = [[row[one] for one in needed] for row in self.by_seed.values() if all(one in row for one in needed)]
        return np.array([row[0] - sum(row[1:]) for row in rows])

    def best_rival(self) -> str:
        """Return the rival with the highest mean among those with the most seeds."""
        most = max(len(self.values(name)) for name in RIVALS)
        return max((name for name in RIVALS if len(self.values(name)) == most), key=lambda one: self.values(one).mean())


def cells(runs: list[Run]) -> list[Cell]:
    """Collect the runs by budget and task, in the order of the tables."""
    before, found = earlier(runs), []
    for at in BUDGETS:
        for task in TASKS:
            group = sorted((run for run in runs if (run.task, run.at) == (task, at)), key=lambda run: run.seed)
            by_seed = {}
            for run in group:
                chosen = {rule: run.chosen(rule) for rule in CURVES}
                own = {rule: run.test[name] for rule, name in chosen.items() if name is not None}
                by_seed[run.seed] = before[run.task, run.seed, run.at] | own
            if group:
                found.append(Cell(task, at, by_seed, group))
    return found


def spread(values: np.ndarray, sign: str = "") -> str:
    """Write a mean and its standard deviation over the seeds."""
    if not len(values):
        return ""
    return f"{values.mean():{sign}.2f}" + (f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else "")


def table(found: list[Cell]) -> str:
    """Tabulate each rule and rival, mean ± standard deviation over the seeds, and the paired differences."""
    lines = [
        "| task | passes | seeds | A | B | C | plain | schedule-free | at rate 2 | B less A | C less A "
        "| A less best rival | C less best rival |",
        "|---|" + "---:|" * 12,
    ]
    for cell in found:
        rival = cell.best_rival()
        row = [spread(cell.values(name)) for name in ("A", "B", "C", *RIVALS)]
        row += [
            spread(cell.values(one, other), "+") for one, other in (("B", "A"), ("C", "A"), ("A", rival), ("C", rival))
        ]
        lines.append(f"| {TASKS[cell.task]} | {PASSES[cell.at]} | {len(cell.runs)} | {' | '.join(row)} |")
    return "\n".join(lines)


def choices_table(found: list[Cell]) -> str:
    """Tabulate what the two candidates of C have alone, means over the seeds, and what choosing costs."""
    lines = [
        "| task | passes | end of B | end of C | best average | C | kept by C | epochs to choose |",
        "|---|---:|---:|---:|---:|---:|---|---:|",
    ]
    for cell in found:
        ends = [np.mean([run.test[CURVES[rule]] for run in cell.runs if CURVES[rule] in run.test]) for rule in CURVES]
        average = np.mean([run.test[run.best_average()] for run in cell.runs])
        kept_by_c = ", ".join(
            "end" if name == CURVES["C"] else str(name) for run in cell.runs for name in [run.chosen("C")]
        )
        cost = np.mean([run.epochs_to_choose for run in cell.runs])
        values = [*ends, average, cell.values("C").mean()]
        row = " | ".join(f"{value:.2f}" for value in values)
        lines.append(f"| {TASKS[cell.task]} | {PASSES[cell.at]} | {row} | {kept_by_c} | {cost:.1f} |")
    return "\n".join(lines)


def verdict(found: list[Cell], rule: str) -> tuple[bool, str]:
    """Apply the rule of the study to B or C: never more than ``SLACK`` behind A, and ahead in the mean of all."""
    differences = {(cell.task, cell.at): cell.values(rule, "A") for cell in found}
    means = {place: values.mean() for place, values in differences.items() if len(values)}
    behind = {place: mean for place, mean in means.items() if mean < -SLACK}
    mean = float(np.mean(list(means.values())))
    wins = not behind and mean > 0
    places = "; ".join(f"{TASKS[task]} at {PASSES[at]}: {value:+.2f}" for (task, at), value in behind.items())
    return wins, (
        f"{rule}: {mean:+.2f} in the mean of {len(means)} tasks and budgets; more than {SLACK} behind A: "
        f"{places or 'nowhere'}. {'It becomes the default.' if wins else 'It does not become the default.'}"
    )


class Listed(NamedTuple):
    """What a choice of A from a list has: points of accuracy ahead of the choice by ``few``, and networks measured."""

    gain: float
    n_networks: int


def from_list(stored: stored_choices.Stored, lengths: Iterable[int], with_mean: bool) -> Listed:
    """Choose among A's last epoch, perhaps the mean of its epochs, and averages that end at the newest snapshot."""
    means, names = stored.losses["trained"].mean(1), stored.names
    epochs = [number for number, name in enumerate(names) if name.startswith("epoch ")]
    numbers = [epochs[-1]]
    numbers += [names.index(name) for name in [f"mean of epochs 1 to {len(epochs)}"] if with_mean and name in names]
    windows = [
        (number, *map(int, found.groups())) for number, found in enumerate(map(_WINDOW.fullmatch, names)) if found
    ]
    newest = max(last for *_, last in windows)
    by_length = {length: number for number, length, last in windows if last == newest}
    wanted = [max(by_length) if length == ALL else length for length in lengths]
    numbers += [by_length[length] for length in dict.fromkeys(wanted) if length in by_length]
    few = stored_choices.few(stored, "trained")
    before, now = (min(some, key=lambda number: means[number]) for some in (few, numbers))
    return Listed(float(stored.test[now] - stored.test[before]), len(numbers))


def lists_table() -> str:
    """Tabulate what A loses if a short list takes the place of its search from coarse to fine, in Markdown."""
    paths = [path for path in sorted(CHOICES.glob("*.npz")) if (place := stored_choices.FILE.fullmatch(path.name))
             and place["task"] in TASKS and not place["rival"]]  # fmt: skip
    stored = [stored_choices.read(path, N_VAL) for path in paths]
    today = np.mean([len(stored_choices.few(one, "trained")) for one in stored])
    lines = [
        f"| averages | mean of the epochs | networks (today {today:.1f}) | less today's choice | least |",
        "|---|---|---:|---:|---|",
    ]
    for label, lengths in LISTS.items():
        for with_mean in (True, False):
            found = [(one, from_list(one, lengths, with_mean)) for one in stored]
            places = sorted({(one.task, one.at) for one in stored})
            gains = {
                place: np.mean([listed.gain for one, listed in found if (one.task, one.at) == place])
                for place in places
            }
            least = min(gains, key=lambda place: gains[place])
            n = np.mean([listed.n_networks for _, listed in found])
            where = f"{gains[least]:+.2f}, {TASKS[least[0]]} from epoch {least[1]}"
            mean = np.mean(list(gains.values()))
            lines.append(f"| {label} | {'yes' if with_mean else 'no'} | {n:.1f} | {mean:+.2f} | {where} |")
    return "\n".join(lines)


def load(store: Path) -> list[Run]:
    return [read(path) for path in sorted(store.glob("*.npz")) if _FILE.fullmatch(path.name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--keep", type=Path, help="write what is needed of this folder to the store, and end")
    arguments = parser.parse_args()
    if arguments.keep is not None:
        arguments.store.mkdir(exist_ok=True)
        for path in sorted(arguments.keep.glob("*.npz")):
            if _FILE.fullmatch(path.name):
                with np.load(path, allow_pickle=False) as stored:
                    np.savez_compressed(arguments.store / path.name, **kept(dict(stored)))
        return
    found = cells(load(arguments.store))
    print(
        "\n\n".join([table(found), choices_table(found), *(verdict(found, rule)[1] for rule in CURVES), lists_table()])
    )


if __name__ == "__main__":
    main()
