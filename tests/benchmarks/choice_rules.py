"""The regret of rules of choice, from what ``choice_store.py`` stored; seconds, without MindSpore.

    python -m tests.benchmarks.choice_rules STORE

STORE holds ``TASK_SEED_EPOCHS.npz``, and of rivals ``TASK_SEED_PASSES_NAME.npz``. The regret of a rule is the test
metric of the best candidate minus that of the one that the rule chooses by ``val`` alone: accuracy in points, of a text
a hundred times the loss. A rule is a loss of each sample and a way to break ties:

- ``entropy``: cross entropy. ``trained``: the loss that was trained, with smoothed labels (0.1). ``temperature``: cross
  entropy at each candidate's own best temperature, fitted on one half of ``val`` and applied to the other (Guo et al.,
  On Calibration of Modern Neural Networks, 2017). ``error``: the metric itself, 0 or 1.
- ``lowest``: the lowest mean, which is the rule of ``dimred.averaging.choice``. ``widest``: the largest effective size
  within one standard error of the lowest, paired by sample. ``widest half``: within half of one. ``metric``: within one
  standard error of the lowest, the best metric, and of equal ones the lower loss.

More tables follow: what some rules choose among few candidates, as ``measure_windows`` finds them; what is lost by
that, and by dropping some on parts of ``val``; what this rule chooses, beside the rivals, by run and by task; and how
much of that is due to the training, and how much to the choice. The folder ``choices`` beside this file is the store of
the study, without outputs: only losses on ``val``, and which samples of ``test`` were right.
"""

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.benchmarks.stored_choices import FILE, LOSSES, Stored, choose, few, losses_only, near, part, read

PARTS = (1 / 8, 1 / 4, 1 / 2)  # shares of val; after each, ``race`` drops what is three standard errors behind
RULE = ("trained", "lowest")
RULES_OF_FEW = (("entropy", "widest"), RULE, ("trained", "metric"))  # the rule before this one is the first
SIZES = (200, 500, 1000)  # samples of val
TIES = ("lowest", "widest", "widest half", "metric")


def regrets(stored: Iterable[Stored]) -> dict[tuple[str, str], dict[str, list[float]]]:
    """(loss, tie) -> task -> the regret of each run."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for one in stored:
        for loss in LOSSES:
            for tie in TIES:
                regret = one.test.max() - one.test[choose(one, loss, tie)]
                found.setdefault((loss, tie), {}).setdefault(one.task, []).append(float(regret))
    return found


def table(found: dict[tuple[str, str], dict[str, list[float]]]) -> str:
    """Tabulate the mean and the worst regret of each rule and task, in Markdown."""
    tasks = sorted({task for of_rule in found.values() for task in of_rule})
    lines = ["| loss | ties | " + " | ".join(tasks) + " | all |", "|---|---|" + "---:|" * (len(tasks) + 1)]
    for (loss, tie), of_rule in found.items():
        cells = [f"{np.mean(of_rule[task]):.2f}, {max(of_rule[task]):.2f}" for task in tasks]
        mean = np.mean([np.mean(of_rule[task]) for task in tasks])
        lines.append(f"| {loss} | {tie} | " + " | ".join(cells) + f" | {mean:.2f} |")
    return "\n".join(lines)


def few_table(of_sizes: dict[int, list[Stored]]) -> str:
    """Tabulate the test metric of what a rule chooses among few candidates, mean over seeds, by size of ``val``."""
    tasks = sorted({one.task for stored in of_sizes.values() for one in stored})
    lines = ["| val | rule | " + " | ".join(tasks) + " | all |", "|---|---|" + "---:|" * (len(tasks) + 1)]
    for n_val, stored in of_sizes.items():
        for loss, tie in RULES_OF_FEW:
            found: dict[str, list[float]] = {task: [] for task in tasks}
            for one in stored:
                measured = part(one, few(one, loss))
                found[one.task].append(float(measured.test[choose(measured, loss, tie)]))
            means = [np.mean(found[task]) for task in tasks]
            cells = " | ".join(f"{mean:.2f}" for mean in [*means, np.mean(means)])
            lines.append(f"| {n_val} | {loss}, {tie} | {cells} |")
    return "\n".join(lines)


def race(stored: Stored, loss: str) -> tuple[float, bool]:
    """Return the share of forward passes left when candidates are dropped on the way, and if the choice is the same.

    The first sample of ``val`` needs BatchNorm's statistics, so their re-estimation is paid for every candidate.
    """
    losses = stored.losses.get(loss, stored.losses["entropy"])
    order, n = np.random.default_rng(1).permutation(losses.shape[1]), losses.shape[1]
    alive, seen, done = np.arange(len(losses)), 0, 0
    for share in (*PARTS, 1.0):
        seen, done = seen + len(alive) * (int(share * n) - done), int(share * n)
        if share < 1:
            alive = alive[near(losses[np.ix_(alive, order[:done])], 3.0)]
    whole = len(losses) * stored.n_images
    left = (len(losses) * (stored.n_images - n) + seen) / whole
    return left, choose(part(stored, alive.tolist()), loss, "lowest") == list(alive).index(
        choose(stored, loss, "lowest")
    )


def costs(stored: list[Stored]) -> str:
    """Tabulate what measuring few candidates, and dropping some on the way, saves and loses, in Markdown."""
    lines = [
        "| choice | all | few | test of all | test of few | dropping: passes left | same choice |",
        "|---|" + "---:|" * 6,
    ]
    for one in stored:
        numbers = few(one, RULE[0])
        chosen = one.test[choose(one, *RULE)], one.test[numbers[choose(part(one, numbers), *RULE)]]
        left, same = race(one, RULE[0])
        counts = f"{len(one.names)} | {len(numbers)} | {chosen[0]:.2f} | {chosen[1]:.2f}"
        lines.append(f"| {one.task}, seed {one.seed}, {one.at} | {counts} | {left:.2f} | {'yes' if same else 'no'} |")
    return "\n".join(lines)


class Result(NamedTuple):
    """The test metric of one run's networks by name, and what the rule kept."""

    run: Stored
    values: dict[str, float]
    passes: dict[str, int]  # that each rival took
    kept: str


def results(stored: list[Stored], rivals: list[Stored]) -> list[Result]:
    """Collect the last weights, the best average, the choice, and each rival of the same task, seed and budget."""
    found = []
    for one in stored:
        numbers = few(one, RULE[0])
        chosen = numbers[choose(part(one, numbers), *RULE)]
        averages = [number for number in numbers if not re.match("epoch|mean", one.names[number])]
        average = averages[choose(part(one, averages), *RULE)]
        values = {"last": one.test[0], "average": one.test[average], "stage 2": one.test[chosen]}
        last_epoch = max(number for number in numbers if one.names[number].startswith("epoch "))
        values |= {"last epoch": one.test[last_epoch], "best": one.test.max()}
        passes = {}
        for rival in rivals:
            if (rival.task, rival.seed) == (one.task, one.seed) and one.at < rival.at <= 1.25 * one.at + 1:
                values[str(rival.rival)], passes[str(rival.rival)] = rival.test[0], rival.at
        found.append(Result(one, values, passes, one.names[chosen]))
    return found


def results_table(found: list[Result], rivals: list[str]) -> str:
    """Tabulate one row for each run, in Markdown."""
    lines = [
        "| run | last | average | stage 2 | " + " | ".join(rivals) + " | kept |",
        "|---|" + "---:|" * (3 + len(rivals)) + "---|",
    ]
    for one in found:
        cells = [f"{one.values[name]:.2f}" for name in ("last", "average", "stage 2")]
        cells += [f"{one.values[name]:.2f} ({one.passes[name]})" if name in one.passes else "" for name in rivals]
        lines.append(f"| {one.run.task}, seed {one.run.seed}, {one.run.at} | {' | '.join(cells)} | {one.kept} |")
    return "\n".join(lines)


def means_table(found: list[Result], rivals: list[str]) -> str:
    """Make a Markdown table of means over the seeds, with stage 2 less each rival ± standard error, paired by seed.

    A rival that some seeds lack has their number in brackets.
    """
    lines = [
        "| task, epochs of stage 1 | seeds | last | average | stage 2 | "
        + " | ".join([*rivals, *(f"stage 2 less {name}" for name in rivals)])
        + " |",
        "|---|" + "---:|" * (4 + 2 * len(rivals)),
    ]
    for task, at in sorted({(one.run.task, one.run.at) for one in found}, key=lambda group: (group[1], group[0])):
        group = [one.values for one in found if (one.run.task, one.run.at) == (task, at)]
        cells = [f"{np.mean([values[name] for values in group]):.2f}" for name in ("last", "average", "stage 2")]
        theirs, gains = [""] * len(rivals), [""] * len(rivals)
        for number, name in enumerate(rivals):
            pairs = np.array([(values["stage 2"], values[name]) for values in group if name in values])
            if not len(pairs):
                continue
            few_seeds = f" ({len(pairs)})" if len(pairs) < len(group) else ""
            more = pairs[:, 0] - pairs[:, 1]
            error = f" ± {more.std(ddof=1) / len(more) ** 0.5:.2f}" if len(more) > 1 else ""
            theirs[number], gains[number] = f"{pairs[:, 1].mean():.2f}{few_seeds}", f"{more.mean():+.2f}{error}"
        lines.append(f"| {task}, {at} | {len(group)} | {' | '.join([*cells, *theirs, *gains])} |")
    return "\n".join(lines)


def causes_table(found: list[Result]) -> str:
    """Tabulate whether the training or the choice is behind plain training, in Markdown; means over the seeds.

    The last epoch of stage 2 less plain training is due to the training, the rest to the choice.
    """
    lines = [
        "| stage 1 | task | seeds | last epoch less plain | choice less last epoch | best of all less choice |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for at, task in sorted({(one.run.at, one.run.task) for one in found if "plain" in one.values}):
        group = [one.values for one in found if (one.run.at, one.run.task) == (at, task) and "plain" in one.values]
        pairs = (("last epoch", "plain"), ("stage 2", "last epoch"), ("best", "stage 2"))
        means = [np.mean([values[one] - values[other] for values in group]) for one, other in pairs]
        lines.append(f"| {at} | {task} | {len(group)} | {means[0]:+.2f} | {means[1]:+.2f} | {means[2]:+.2f} |")
    return "\n".join(lines)


def keep(path: Path, out: Path) -> None:
    """Write a file of the store with what these tables need, a tenth of its size."""
    with np.load(path, allow_pickle=False) as stored:
        np.savez_compressed(out, **losses_only(dict(stored), SIZES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--at", type=int, nargs="*", help="only these epochs of stage 1")
    parser.add_argument("--keep", type=Path, help="write what the tables need of the store to this folder, and end")
    arguments = parser.parse_args()
    files = [path for path in sorted(arguments.store.glob("*.npz")) if FILE.fullmatch(path.name)]
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        for path in files:
            keep(path, arguments.keep / path.name)
        return
    of_sizes = {}
    for n_val in SIZES:
        found = [read(path, n_val) for path in files]
        rivals = [one for one in found if one.rival]
        stored = [one for one in found if not one.rival and (not arguments.at or one.at in arguments.at)]
        of_sizes[n_val] = stored
        print(f"val of {n_val}: regret, mean and worst of {len(stored)} choices\n\n{table(regrets(stored))}\n")
    measured, names = results(stored, rivals), sorted({str(rival.rival) for rival in rivals})
    tables = few_table(of_sizes), costs(stored), results_table(measured, names), means_table(measured, names)
    print("\n\n".join((*tables, causes_table(measured))))


if __name__ == "__main__":
    main()
