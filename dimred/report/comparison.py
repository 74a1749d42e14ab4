"""The comparison of stage 2 with its controls: from the files of the single runs to one JSON and its tables."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import ConfigError
from dimred.files.metrics_file import ACCURACY, metric_axis, metric_text

# Method -> what a reader is told. The order is that of the table.
TITLES = {
    "last": "last weights of stage 1",
    "swa": "SWA, all snapshots (uniform soup)",
    "best_window": "best window, nothing after it",
    "greedy_soup": "greedy soup of the snapshots",
    "trainable_averaging": "trainable averaging",
    "projected_sgd": "projected SGD",
    "p_bfgs_train": "P-BFGS with the published residual, on train",
    "p_bfgs_val": "P-BFGS with the published residual, on val",
    "continued": "stage 2 with the directions of the snapshots",
    "continued_random": "stage 2 with random directions",
    "continued_alone": "**stage 2 without directions**",
    "cooldown": "cooldown at equal passes",
    "plain_for_total": "plain training, schedule made for this total",
    "plain_to_the_end": "plain training to the end of its schedule",
}
_SCORES = ("val", "test", "val_reestimated", "test_reestimated", "val_loss", "test_loss")
_MEANS = ("passes", "forward_epochs", "backward_epochs", "seconds")

Row = dict[str, Any]


def collect(folder: Path) -> dict[str, Any]:
    """Sum up what the runs in ``folder/seed_S/at_EPOCH/METHOD.json`` found.

    Returns:
        ``seeds``; ``at``, epochs of stage 1; ``metric``, its name; ``batch_norm``, whether there is any; ``rows``; and
        ``runs``, the files. A row is of one method and one of ``at``; it has the mean and the spread (the standard
        deviation over the seeds, null for one seed) of each score, and the mean of each cost. ``passes`` are those of
        the training that led to the weights, forward and backward, stage 1 included, in epochs of ordinary training;
        the other costs are those after stage 1, choices on ``val`` included, in epochs of the training split.

    Raises:
        ConfigError: there are none.
    """
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("seed_*/at_*/*.json"))]
    runs = [run for run in files if run.get("method") in TITLES]
    if not runs:
        raise ConfigError(f"{str(folder)!r} has no seed_S/at_EPOCH/METHOD.json; make them with dimred compare")
    place = {method: number for number, method in enumerate(TITLES)}
    runs.sort(key=lambda run: (run["at"], place[run["method"]], run["seed"]))
    groups: dict[tuple[int, str], list[Row]] = {}
    for run in runs:
        groups.setdefault((run["at"], run["method"]), []).append(run)
    return {
        "seeds": sorted({run["seed"] for run in runs}),
        "at": sorted({run["at"] for run in runs}),
        "metric": runs[0].get("metric", ACCURACY),
        "batch_norm": any(run.get("batch_norm", True) for run in runs),
        "rows": [_row(at, method, of_method) for (at, method), of_method in groups.items()],
        "runs": runs,
    }


def _row(at: int, method: str, runs: list[Row]) -> Row:
    row: Row = {"method": method, "at": at, "n_seeds": len(runs)}
    for name in (score for score in _SCORES if all(score in run for run in runs)):
        found = [run[name] for run in runs]
        row[name] = {"mean": float(np.mean(found)), "spread": float(np.std(found, ddof=1)) if len(found) > 1 else None}
    row |= {name: float(np.mean([run[name] for run in runs])) for name in _MEANS}
    return row | {"chosen": [run["chosen"] for run in runs]}


def plain_title(method: str) -> str:
    """A method's title without the marks of bold print."""
    return TITLES[method].replace("**", "")


def rows_at(summary: dict[str, Any], at: int) -> list[Row]:
    """The rows of one epoch of stage 1."""
    return [row for row in summary["rows"] if row["at"] == at]


def best_row(rows: Iterable[Row], split: str, metric: str) -> Row:
    """Of the best mean on a split: the highest accuracy; with another metric the lowest loss."""
    if metric == ACCURACY:
        return max(rows, key=lambda row: float(row[f"{split}_reestimated"]["mean"]))
    return min(rows, key=lambda row: float(row[f"{split}_loss"]["mean"]))


def curves(summary: dict[str, Any]) -> dict[str, list[Row]]:
    """Title -> the method's rows at all epochs of stage 1, by their passes."""
    found: dict[str, list[Row]] = {}
    for row in sorted(summary["rows"], key=lambda row: row["passes"]):
        found.setdefault(plain_title(row["method"]), []).append(row)
    return found


def headings(metric: str) -> list[str]:
    """Of a table."""
    unit = metric_axis(metric)[0].replace(ACCURACY, "").lstrip(", ")
    scores = [f"{split}, {unit}" for split in ("val", "test")]
    return ["", "epochs' worth", *scores, "forward passes", "backward passes", "seconds"]


def table_rows(rows: Sequence[Row], n_seeds: int, metric: str) -> list[list[str]]:
    """The body of a table as text; the best mean on test is bold (``**``), a row of fewer seeds says so."""
    best, lines = best_row(rows, "test", metric)["test_reestimated"]["mean"], []
    for row in rows:
        title = TITLES[row["method"]] + ("" if row["n_seeds"] == n_seeds else f" ({row['n_seeds']} of {n_seeds} seeds)")
        scores = [score_text(row[name], metric) for name in ("val_reestimated", "test_reestimated")]
        if row["test_reestimated"]["mean"] == best:
            scores[-1] = f"**{scores[-1]}**"
        costs = [f"{row['forward_epochs']:.1f}", f"{row['backward_epochs']:.1f}", f"{row['seconds']:.0f}"]
        lines.append([title, f"{row['passes']:.1f}", *scores, *costs])
    return lines


def score_text(score: dict[str, float | None], metric: str) -> str:
    """Mean and spread, without the unit."""
    mean, spread = (
        None if value is None else metric_text(metric, value).removesuffix(" %") for value in score.values()
    )
    return f"{mean}" + ("" if spread is None else f" ± {spread}")


def markdown(summary: dict[str, Any]) -> str:
    """The tables in Markdown, one for each epoch of stage 1."""
    text = "BatchNorm statistics are re-estimated in every row.\n" if summary["batch_norm"] else ""
    for at in summary["at"]:
        names, rows = headings(summary["metric"]), rows_at(summary, at)
        body = table_rows(rows, len(summary["seeds"]), summary["metric"])
        lines = [names, ["---", *["---:"] * (len(names) - 1)], *body]
        text += f"\nStage 1 to epoch {at}:\n\n" + "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return text
