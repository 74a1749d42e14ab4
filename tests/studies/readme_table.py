"""The table of results of the repository's README, from the stores of the published claim; seconds.

    python -m tests.studies.readme_table

A figure is bold if it is ahead of those of all other ends by the rule of ``admission``. A task that was run again on
all of its seeds has the search of those runs.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.studies.admission import Verdict
from tests.studies.published_claim import SEARCH, Rows, Stored, compare_rows, load

HERE = Path(__file__).parent
STORE, AGAIN = HERE / "claims" / "constant", HERE / "claims" / "again" / "constant"
LAST = "plain training, epoch 40"
ROWS = {
    LAST: "last weights of stage 1",
    SEARCH: "**the search, as published**",
    "best average of the snapshots": "best average of the snapshots",
    "cooldown of 2 epochs": "cooldown of the rate",
    "plain training, made for 43 passes": "plain training, schedule made for 43 passes",
}
TASKS = ("satellite", "letters", "Fashion-MNIST", "source code", "digits", "wrong labels", "photographs")


def rows_of(task: str, stored: Sequence[Stored], again: Sequence[Stored]) -> list[Rows]:
    """Return the rows of each seed of a task."""
    rows = {run.seed: run.table_rows() for run in stored if run.task == task}
    new = {run.seed: run.table_rows() for run in again if run.task == task}
    if rows.keys() == new.keys():
        rows = {seed: rows[seed] | {SEARCH: new[seed][SEARCH]} for seed in rows}
    return list(rows.values())


def figure(rows: Sequence[Rows], title: str) -> str:
    """Write the mean ± standard deviation over the seeds, of a text as a loss; bold if it is ahead of all others."""
    scores = np.array([of_run[title].test for of_run in rows])
    is_text = scores.mean() < 0
    mean, spread = np.abs(scores.mean()), scores.std(ddof=1)
    text = f"{mean / 100:.3f} ± {spread / 100:.3f}" if is_text else f"{mean:.1f} ± {spread:.1f}"
    others = [other for other in ROWS if other not in (title, LAST)]
    is_ahead = title != LAST and all(compare_rows(rows, title, other) is Verdict.AHEAD for other in others)
    return f"**{text}**" if is_ahead else text


def table() -> str:
    """Return the table in Markdown."""
    stored, again = load(STORE), load(AGAIN)
    tasks = {task: rows_of(task, stored, again) for task in TASKS}
    heads = []
    for number, (task, rows) in enumerate(tasks.items()):
        name = "source code, loss" if task == "source code" else task
        heads.append(f"{name}, {len(rows)}{' seeds' if number == 0 else ''}")
    lines = ["| | passes | " + " | ".join(heads) + " |", "|---" * (2 + len(heads)) + "|"]
    for title, name in ROWS.items():
        passes = np.mean([of_run[title].passes for rows in tasks.values() for of_run in rows])
        lines.append(f"| {name} | {passes:.0f} | {' | '.join(figure(rows, title) for rows in tasks.values())} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
