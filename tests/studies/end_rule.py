"""The tables of the study of the end of training, from the folder ``end_rule`` beside this file; seconds.

    python -m tests.studies.end_rule

The folder has the losses of each candidate on ``val``, and which samples of ``test`` were right. The program that ran
it is ``tests/studies/end_rule_runs.py`` of commit 03b3a60a, for a worktree of that commit.

A, today's default, is a tenth of all epochs from half of the rate, and a choice among about ten networks. B (linear)
and C (1 - sqrt) take a fifth from the whole of the rate, and have two candidates: the end, and the best of few averages
of stage 1's snapshots. D is B with twice the rate and two fifths of all epochs. The lowest mean of the trained loss on
``val`` chooses. Plain training and schedule-free SGD are those of the study of choices, with the same draw of the data;
only schedule-free SGD with an annealed beta was run for this one. The column ``counts`` is by the rule of
``admission``; that a best rival is ahead does not count, because it was picked on ``test``.
"""

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.studies import stored_choices
from tests.studies.admission import Verdict, in_words, judge

HERE = Path(__file__).parent
STORE = HERE / "end_rule"
CHOICES = HERE / "choices"
PASSES = {22: 30, 36: 45, 69: 89}  # epochs of stage 1 of B and C -> the name of the budget
TODAY = {22: 25, 36: 40, 69: 78}  # and those of A, which trains for as many in all
RULES = ("A", "B", "C")
RIVALS = ("plain", "schedule_free", "schedule_free_rate_2", "schedule_free_annealed")
TASKS = {
    "photos": "photographs",
    "noisy": "wrong labels",
    "satimage": "satellite pixels",
    "letter": "letters",
    "fashion": "Fashion-MNIST",
    "digits": "digits",
}
ALL = 0  # in a list of lengths: all snapshots
LISTS = {  # lengths of the averages that A could choose among, beside its last epoch
    "3 to 34": (3, 5, 8, 13, 21, 34),
    "3 to 55": (3, 5, 8, 13, 21, 34, 55),
    "3 to 34, all": (3, 5, 8, 13, 21, 34, ALL),
    "8, 13, 21, all": (8, 13, 21, ALL),
    "13, all": (13, ALL),
    "none": (),
}
SLACK = 0.1  # points by which a rule may be behind A in the mean of a task
_FILE = re.compile(r"(?P<task>[a-z]+)_(?P<seed>\d+)_(?P<at>\d+)_(?P<rule>[ABCD])\.npz")

_SHORT = re.compile(r"( of)?(?= \d)| snapshots, steps.*| of the epochs")
_WINDOW = re.compile(r"uniform of (\d+) snapshots, steps \d+ to (\d+)")


class Candidates(NamedTuple):
    """What a rule measured: the mean trained loss on ``val`` and the accuracy on ``test`` by name."""

    n_images: int  # forwarded to measure one
    losses: dict[str, float]
    test: dict[str, float]  # percent


class Run(NamedTuple):
    """A task, a seed and a budget: what each rule measured."""

    task: str
    seed: int
    at: int
    rules: dict[str, Candidates]

    @property
    def averages(self) -> dict[str, float]:
        """Return the losses of the averages that B and C choose among."""
        return {name: loss for name, loss in self.rules["C"].losses.items() if name.startswith("uniform ")}

    def losses(self, rule: str) -> dict[str, float]:
        """Return the losses of a rule's candidates."""
        own = self.rules[rule].losses
        return {"end": own["end"]} | self.averages if rule in ("B", "C") else own

    def chosen(self, rule: str) -> str:
        losses = self.losses(rule)
        return min(losses, key=lambda name: losses[name])

    def test(self, rule: str, name: str) -> float:
        return self.rules["C" if name in self.averages and rule == "B" else rule].test[name]

    def epochs_to_choose(self, rule: str) -> float:
        """Return what measuring a rule's candidates costs; a forward pass counts a third of a training one."""
        return len(self.losses(rule)) * self.rules[rule].n_images / 3 / stored_choices.N_TRAIN[self.task]

    def passes(self, rule: str) -> float:
        """Return a rule's epochs, which are equally many for all, and what choosing costs."""
        return TODAY[self.at] + math.ceil(TODAY[self.at] / 9) + self.epochs_to_choose(rule)


def read(path: Path) -> Candidates:
    with np.load(path, allow_pickle=False) as stored:
        names = stored["names"].tolist()
        losses = stored["val_trained"].astype(np.float64).mean(1).tolist()
        test = (100 * np.unpackbits(stored["test_correct"], 1, count=int(stored["n_test"])).mean(1)).tolist()
        n_images = int(stored["n_images"])
    return Candidates(n_images, dict(zip(names, losses, strict=True)), dict(zip(names, test, strict=True)))


def load(store: Path) -> list[Run]:
    """Read all runs of which A and C are there."""
    found: dict[tuple[str, int, int], dict[str, Candidates]] = {}
    for path in sorted(store.glob("*.npz")):
        if place := _FILE.fullmatch(path.name):
            key = place["task"], int(place["seed"]), int(place["at"])
            found.setdefault(key, {})[place["rule"]] = read(path)
    return [Run(*key, rules) for key, rules in found.items() if {"A", "C"} <= rules.keys()]


class Reached(NamedTuple):
    """The accuracy on ``test``, in percent, after so many passes, with those of choosing."""

    test: float
    passes: float


def rivals(run: Run) -> dict[str, Reached]:
    """Return what each rival reaches, after as many passes as A has with those of choosing, rounded up."""
    start, a = f"{run.task}_{run.seed}_", TODAY[run.at]
    found = {}
    for path in sorted([*CHOICES.glob(f"{start}*.npz"), *STORE.glob(f"{start}*.npz")]):
        place = stored_choices.FILE.fullmatch(path.name)
        if place and place["rival"] in RIVALS and a < int(place["at"]) <= 1.25 * a + 1:
            found[place["rival"]] = Reached(float(stored_choices.read(path).test[0]), int(place["at"]))
    return found


class Cell(NamedTuple):
    """A task and a budget: what each rule and rival reaches by seed."""

    task: str
    at: int
    by_seed: dict[int, dict[str, Reached]]
    runs: list[Run]

    def values(self, name: str, beside: str | None = None) -> np.ndarray:
        """Return the accuracies of a rule, or the differences to another one, over the seeds that have both."""
        needed = [name] if beside is None else [name, beside]
        rows = [[row[one].test for one in needed] for row in self.by_seed.values() if all(one in row for one in needed)]
        return np.array([row[0] - sum(row[1:]) for row in rows])

    def compare(self, ours: str, theirs: str) -> Verdict:
        """Compare two rules, or a rule and a rival, by the rule of admission, over the seeds that have both."""
        both = [(row[ours], row[theirs]) for row in self.by_seed.values() if {ours, theirs} <= row.keys()]
        if not both:
            return Verdict.LEVEL
        scores, passes = np.transpose(both, (2, 1, 0))
        return judge(*scores, *passes.mean(1))

    def compare_with_best_rival(self, rule: str) -> Verdict:
        """Compare a rule and the best rival; that this one is ahead does not count, because ``test`` picked it."""
        found = self.compare(rule, self.best_rival())
        return Verdict.LEVEL if found is Verdict.BEHIND else found

    def best_rival(self) -> str:
        """Return the rival with the highest mean among those with the most seeds."""
        most = max(len(self.values(name)) for name in RIVALS)
        return max((name for name in RIVALS if len(self.values(name)) == most), key=lambda one: self.values(one).mean())


def cells(runs: list[Run]) -> list[Cell]:
    """Collect the runs by budget and task, in the order of the tables."""
    found = []
    for at in PASSES:
        for task in TASKS:
            group = sorted((run for run in runs if (run.task, run.at) == (task, at)), key=lambda run: run.seed)
            of_rules = {
                run.seed: {rule: Reached(run.test(rule, run.chosen(rule)), run.passes(rule)) for rule in run.rules}
                for run in group
            }
            if group:
                found.append(Cell(task, at, {run.seed: of_rules[run.seed] | rivals(run) for run in group}, group))
    return found


def spread(values: np.ndarray, sign: str = "") -> str:
    """Write a mean and its standard deviation over the seeds."""
    if not len(values):
        return ""
    return f"{values.mean():{sign}.2f}" + (f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else "")


def table(found: list[Cell]) -> str:
    """Tabulate each rule and rival, mean ± standard deviation over the seeds, and the paired differences."""
    lines = [
        "| task | passes | seeds | A | B | C | plain | schedule-free | at rate 2 | beta annealed | B less A | C less A "
        "| A less best rival | C less best rival | counts |",
        "|---|" + "---:|" * 13 + "---|",
    ]
    for cell in found:
        rival = cell.best_rival()
        row = [spread(cell.values(name)) for name in ("A", "B", "C", *RIVALS)]
        row += [
            spread(cell.values(one, other), "+") for one, other in (("B", "A"), ("C", "A"), ("A", rival), ("C", rival))
        ]
        verdicts = {"B beside A": cell.compare("B", "A"), "C beside A": cell.compare("C", "A")}
        verdicts |= {f"{one} beside best rival": cell.compare_with_best_rival(one) for one in ("A", "C")}
        place = f"{TASKS[cell.task]} | {PASSES[cell.at]} | {len(cell.runs)}"
        lines.append(f"| {place} | {' | '.join(row)} | {in_words(verdicts)} |")
    return "\n".join(lines)


def twice_table(found: list[Cell]) -> str:
    """Tabulate D where it was run, mean ± standard deviation over the seeds, and the paired differences."""
    lines = ["| task | passes | seeds | D | D less A | D less B | counts |", "|---|---:|---:|---:|---:|---:|---|"]
    for cell in found:
        if n := len(cell.values("D")):
            row = [spread(cell.values("D")), *(spread(cell.values("D", other), "+") for other in ("A", "B"))]
            counts = in_words({f"D beside {other}": cell.compare("D", other) for other in ("A", "B")})
            lines.append(f"| {TASKS[cell.task]} | {PASSES[cell.at]} | {n} | {' | '.join(row)} | {counts} |")
    return "\n".join(lines)


def choices_table(found: list[Cell]) -> str:
    """Tabulate the ends alone, the best average of B and C, what A and C keep, and what choosing costs, in Markdown."""
    lines = [
        "| task | passes | end of A | end of B | end of C | best average | A keeps | C keeps | choosing, A, C |",
        "|---|---:|---:|---:|---:|---:|---|---|---:|",
    ]
    for cell in found:
        ends = [[run.test(rule, "end") for run in cell.runs if rule in run.rules] for rule in RULES]
        averages = [run.test("C", min(run.averages, key=lambda name: run.averages[name])) for run in cell.runs]
        values = " | ".join(f"{np.mean(value):.2f}" if value else "" for value in [*ends, averages])
        kept_by = [", ".join(_SHORT.sub("", run.chosen(rule)) for run in cell.runs) for rule in ("A", "C")]
        costs = [f"{np.mean([run.epochs_to_choose(rule) for run in cell.runs]):.1f}" for rule in ("A", "C")]
        place = f"{TASKS[cell.task]} | {PASSES[cell.at]}"
        lines.append(f"| {place} | {values} | {' | '.join(kept_by)} | {', '.join(costs)} |")
    return "\n".join(lines)


def verdict(found: list[Cell], rule: str) -> str:
    """Apply the rule of the study to B or C: never more than ``SLACK`` behind A, and ahead in the mean of all."""
    differences = {(cell.task, cell.at): cell.values(rule, "A") for cell in found}
    means = {place: float(values.mean()) for place, values in differences.items() if len(values)}
    behind = [
        f"{TASKS[task]} at {PASSES[at]} ({means[task, at]:+.2f}, seeds: {len(differences[task, at])})"
        for task, at in means
        if means[task, at] < -SLACK
    ]
    mean, n, n_all = float(np.mean(list(means.values()))), len(means), len(TASKS) * len(PASSES)
    if behind or mean <= 0:
        end = "it does not become the default"
    else:
        end = "it becomes the default" if n == n_all else "not decided, because the others were not run"
    where = ", ".join(behind) or "nowhere"
    start = f"{rule} less A: {mean:+.2f} in the mean of {n} of {n_all} tasks and budgets"
    return f"{start}; more than {SLACK} behind: {where}; {end}."


class Listed(NamedTuple):
    """What a choice of A from a list has: points of accuracy ahead of the choice by ``few``, and networks measured."""

    gain: float
    n_networks: int


def from_list(stored: stored_choices.Stored, lengths: Iterable[int]) -> Listed:
    """Choose among A's last epoch and averages that end at the newest snapshot."""
    means, names = stored.losses.mean(1), stored.names
    numbers = [max(number for number, name in enumerate(names) if name.startswith("epoch "))]
    windows = [
        (number, *map(int, found.groups())) for number, found in enumerate(map(_WINDOW.fullmatch, names)) if found
    ]
    newest = max(last for *_, last in windows)
    by_length = {length: number for number, length, last in windows if last == newest}
    wanted = [max(by_length) if length == ALL else length for length in lengths]
    numbers += [by_length[length] for length in dict.fromkeys(wanted) if length in by_length]
    few = stored_choices.few(stored)
    before, now = (min(some, key=lambda number: means[number]) for some in (few, numbers))
    return Listed(float(stored.test[now] - stored.test[before]), len(numbers))


def lists_table() -> str:
    """Tabulate what A loses if a short list takes the place of its search from coarse to fine, in Markdown."""
    stored = [
        stored_choices.read(path)
        for path in sorted(CHOICES.glob("*.npz"))
        if (place := stored_choices.FILE.fullmatch(path.name)) and place["task"] in TASKS and not place["rival"]
    ]
    coarse_to_fine = np.mean([len(stored_choices.few(one)) for one in stored])
    lines = [
        f"| averages | networks (coarse to fine {coarse_to_fine:.1f}) | less that choice | least |",
        "|---|---:|---:|---|",
    ]
    places = sorted({(one.task, one.at) for one in stored})
    for label, lengths in LISTS.items():
        listed = [(one, from_list(one, lengths)) for one in stored]
        gains = {
            place: np.mean([of_list.gain for one, of_list in listed if (one.task, one.at) == place]) for place in places
        }
        least = min(gains, key=lambda place: gains[place])
        n = np.mean([of_list.n_networks for _, of_list in listed])
        where = f"{gains[least]:+.2f}, {TASKS[least[0]]} from epoch {least[1]}"
        lines.append(f"| {label} | {n:.1f} | {np.mean(list(gains.values())):+.2f} | {where} |")
    return "\n".join(lines)


def main() -> None:
    found = cells(load(STORE))
    verdicts = [verdict(found, rule) for rule in RULES[1:]]
    parts = table(found), choices_table(found), *verdicts, twice_table(found), lists_table()
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
