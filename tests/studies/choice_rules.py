"""What the rule of choice keeps, beside rivals, from the store of ``choice_store.py`` of commit 741df3b6.

    python -m tests.studies.choice_rules STORE

STORE holds ``TASK_SEED_EPOCHS.npz``, and of rivals ``TASK_SEED_PASSES_NAME.npz``. The rule takes the lowest mean of the
trained loss on ``val`` among few candidates, as ``measure_windows`` finds them; fifteen other rules were compared once,
see ``choice.md``. The tables show the test metric of what is kept by task and by run, how much of a difference is due
to the training, and how much to the choice, and the rival ``fifth`` beside the recipe and two rivals. The column
``counts`` is by the rule of ``admission``. The folder ``choices`` beside this file is the store of the study,
without outputs: only the trained losses on ``val``, and which samples of ``test`` were right.
"""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.studies.admission import Verdict, in_words, judge
from tests.studies.stored_choices import FILE, N_TRAIN, Stored, choose, few, read

TITLES = {
    "digits": "digits",
    "fashion": "Fashion-MNIST",
    "fashion_all": "all of Fashion-MNIST",
    "letter": "letters",
    "noisy": "wrong labels",
    "photos": "photographs",
    "prose": "novels, 100 times the loss",
    "satimage": "satellite pixels",
    "source": "source code",
}


class Result(NamedTuple):
    """The test metric of one run's networks by name, and what the rule kept.

    Attributes:
        passes: those of stage 2, with its choice, and of each rival, by name.
    """

    run: Stored
    values: dict[str, float]
    passes: dict[str, float]
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
        n_epochs = max(int(name.split()[-1]) for name in one.names if name.startswith("epoch "))
        passes = {"stage 2": one.at + n_epochs + len(numbers) * one.n_images / 3 / N_TRAIN[one.task]}
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
        cells += [f"{one.values[name]:.2f} ({one.passes[name]:.0f})" if name in one.passes else "" for name in rivals]
        lines.append(f"| {one.run.task}, seed {one.run.seed}, {one.run.at} | {' | '.join(cells)} | {one.kept} |")
    return "\n".join(lines)


def means_table(found: list[Result], rivals: list[str]) -> str:
    """Make a Markdown table of means over the seeds, with stage 2 less each rival ± standard error, paired by seed.

    A rival that some seeds lack has their number in brackets.
    """
    lines = [
        "| task, epochs of stage 1 | seeds | last | average | stage 2 | "
        + " | ".join([*rivals, *(f"stage 2 less {name}" for name in rivals)])
        + " | counts |",
        "|---|" + "---:|" * (4 + 2 * len(rivals)) + "---|",
    ]
    for task, at in sorted({(one.run.task, one.run.at) for one in found}, key=lambda group: (group[1], group[0])):
        group = [one for one in found if (one.run.task, one.run.at) == (task, at)]
        cells = [f"{np.mean([one.values[name] for one in group]):.2f}" for name in ("last", "average", "stage 2")]
        theirs, gains = [""] * len(rivals), [""] * len(rivals)
        for number, name in enumerate(rivals):
            both = [one.values[name] for one in group if name in one.values]
            if both:
                few_seeds = f" ({len(both)})" if len(both) < len(group) else ""
                theirs[number] = f"{np.mean(both):.2f}{few_seeds}"
                gains[number] = difference(group, "stage 2", name)
        counts = in_words({name: compare(group, "stage 2", name) for name in rivals})
        lines.append(f"| {task}, {at} | {len(group)} | {' | '.join([*cells, *theirs, *gains])} | {counts} |")
    return "\n".join(lines)


def difference(group: list[Result], ours: str, theirs: str) -> str:
    """Write one row less another, mean ± standard error over the seeds that have both."""
    more = np.array([one.values[ours] - one.values[theirs] for one in group if {ours, theirs} <= one.values.keys()])
    if not len(more):
        return ""
    return f"{more.mean():+.2f}" + (f" ± {more.std(ddof=1) / len(more) ** 0.5:.2f}" if len(more) > 1 else "")


def compare(group: list[Result], ours: str, theirs: str) -> Verdict:
    """Compare two rows by the rule, over the seeds that have both."""
    both = [one for one in group if {ours, theirs} <= one.values.keys()]
    if not both:
        return Verdict.LEVEL
    scores, passes = (
        [[values[name] for values in column] for name in (ours, theirs)]
        for column in ([one.values for one in both], [one.passes for one in both])
    )
    return judge(*scores, *np.mean(passes, axis=1))


def fifth_table(found: list[Result]) -> str:
    """Tabulate a stage 2 of a fifth of all epochs beside the recipe, plain training and schedule-free SGD."""
    others = {"recipe": "stage 2", "plain": "plain", "schedule-free": "schedule_free"}
    lines = [
        "| | passes | seeds | " + " | ".join(f"fifth less {name}" for name in others) + " | counts |",
        "|---|" + "---:|" * (2 + len(others)) + "---|",
    ]
    for at, task in sorted({(one.run.at, one.run.task) for one in found if "fifth" in one.values}):
        group = [one for one in found if (one.run.at, one.run.task) == (at, task) and "fifth" in one.values]
        passes = np.mean([one.passes["fifth"] for one in group])
        cells = [difference(group, "fifth", name) for name in others.values()]
        counts = in_words({title: compare(group, "fifth", name) for title, name in others.items()})
        lines.append(f"| {TITLES[task]} | {passes:.0f} | {len(group)} | {' | '.join(cells)} | {counts} |")
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
    tables = results_table(measured, names), means_table(measured, names), causes_table(measured), fifth_table(measured)
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
