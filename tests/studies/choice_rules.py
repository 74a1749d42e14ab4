"""What the rule of choice keeps, beside rivals, from the store of ``choice_store.py`` of commit 741df3b6.

    python -m tests.studies.choice_rules STORE

STORE holds ``TASK_SEED_EPOCHS.npz``, and of rivals ``TASK_SEED_PASSES_NAME.npz``. The rule takes the lowest mean of the
trained loss on ``val`` among few candidates, as ``measure_windows`` finds them; fifteen other rules were compared once,
see ``choice.md``. The tables show the test metric of what is kept by task and by run, and how much of a difference is
due to the training, and how much to the choice. The folder ``choices`` beside this file is the store of the study,
without outputs: only the trained losses on ``val``, and which samples of ``test`` were right.
"""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.studies.stored_choices import FILE, Stored, choose, few, read


class Result(NamedTuple):
    """The test metric of one run's networks by name, and what the rule kept."""

    run: Stored
    values: dict[str, float]
    passes: dict[str, int]  # that each rival took
    kept: str


def results(stored: list[Stored], rivals: list[Stored]) -> list[Result]:
    """Collect the last weights, the best average, the choice, and each rival of the same task, seed and budget."""
    collected = []
    for one in stored:
        numbers = few(one)
        chosen = choose(one, numbers)
        average = choose(one, [number for number in numbers if not re.match("epoch|mean", one.names[number])])
        values = {"last": one.test[0], "average": one.test[average], "stage 2": one.test[chosen]}
        values["last epoch"] = one.test[max(number for number in numbers if one.names[number].startswith("epoch "))]
        passes = {}
        for rival in rivals:
            if (rival.task, rival.seed) == (one.task, one.seed) and one.at < rival.at <= 1.25 * one.at + 1:
                values[str(rival.rival)], passes[str(rival.rival)] = rival.test[0], rival.at
        collected.append(Result(one, values, passes, one.names[chosen]))
    return collected


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
        "| stage 1 | task | seeds | last epoch less plain | choice less last epoch |",
        "|---|---|---:|---:|---:|",
    ]
    for at, task in sorted({(one.run.at, one.run.task) for one in found if "plain" in one.values}):
        group = [one.values for one in found if (one.run.at, one.run.task) == (at, task) and "plain" in one.values]
        pairs = (("last epoch", "plain"), ("stage 2", "last epoch"))
        means = [np.mean([values[one] - values[other] for values in group]) for one, other in pairs]
        lines.append(f"| {at} | {task} | {len(group)} | {means[0]:+.2f} | {means[1]:+.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    files = sorted(parser.parse_args().store.glob("*.npz"))
    everything = [read(path) for path in files if FILE.fullmatch(path.name)]
    rivals = [one for one in everything if one.rival]
    measured = results([one for one in everything if not one.rival], rivals)
    names = sorted({str(rival.rival) for rival in rivals})
    print("\n\n".join((results_table(measured, names), means_table(measured, names), causes_table(measured))))


if __name__ == "__main__":
    main()
