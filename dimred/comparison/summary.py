"""The comparison summed up: from the files of the single rows to one JSON and its tables."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import ConfigError
from dimred.io.metrics_file import ACCURACY, metric_axis, metric_text

# Method -> its title. The order is that of the table.
TITLES = {
    "last": "last weights of stage 1",
    "average": "best average of its snapshots",
    "stage_2": "**stage 2: cooldown and choice**",
    "search": "stage 2 with the search",
    "plain_for_total": "plain training, schedule made for this total",
    "plain_to_the_end": "plain training to the end of its schedule",
}
_SCORES = ("val", "test", "val_reestimated", "test_reestimated", "val_loss", "test_loss")

Row = dict[str, Any]


def collect(folder: Path) -> dict[str, Any]:
    """Sum up the files ``folder/seed_S/at_EPOCH/METHOD.json``.

    Returns:
        ``seeds``; ``at``, epochs of stage 1; ``metric``, its name; ``batch_norm``, whether the network has any;
        ``rows``; and ``runs``, the files' contents. A row is of one method and one of ``at``. It has each score's mean
        and spread over the seeds (the standard deviation; None for one seed) and the mean of each cost. ``passes`` are
        those of the training that led to the weights, stage 1 included, in epochs of ordinary training; ``seconds``
        are those after stage 1, with rejected trainings and choices.

    Raises:
        ConfigError: the folder has no such file.
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
        "metric": runs[0]["metric"],
        "batch_norm": any(run["batch_norm"] for run in runs),
        "rows": [_row(at, method, of_method) for (at, method), of_method in groups.items()],
        "runs": runs,
    }


def _row(at: int, method: str, runs: list[Row]) -> Row:
    row: Row = {"method": method, "at": at, "n_seeds": len(runs), "chosen": [run["chosen"] for run in runs]}
    for name in _SCORES:
        found = [run[name] for run in runs]
        row[name] = {"mean": float(np.mean(found)), "spread": float(np.std(found, ddof=1)) if len(found) > 1 else None}
    return row | {name: float(np.mean([run[name] for run in runs])) for name in ("passes", "seconds")}


def plain_title(method: str) -> str:
    """Return a method's title without the marks of bold print."""
    return TITLES[method].replace("**", "")


def rows_at(summary: dict[str, Any], at: int) -> list[Row]:
    """Return the rows of one epoch of stage 1."""
    return [row for row in summary["rows"] if row["at"] == at]


def best_row(rows: Iterable[Row], split: str, metric: str) -> Row:
    """Return the row with the best mean on a split: the highest accuracy, or with another metric the lowest loss."""
    if metric == ACCURACY:
        return max(rows, key=lambda row: float(row[f"{split}_reestimated"]["mean"]))
    return min(rows, key=lambda row: float(row[f"{split}_loss"]["mean"]))


def curves(summary: dict[str, Any]) -> dict[str, list[Row]]:
    """Group the rows by title, each group in the order of its passes."""
    found: dict[str, list[Row]] = {}
    for row in sorted(summary["rows"], key=lambda row: row["passes"]):
        found.setdefault(plain_title(row["method"]), []).append(row)
    return found


def headings(metric: str) -> list[str]:
    """Return the headings of a table."""
    unit = metric_axis(metric)[0].replace(ACCURACY, "").lstrip(", ")
    return ["", "passes", *(f"{split}, {unit}" for split in ("val", "test")), "seconds"]


def table_rows(rows: Sequence[Row], n_seeds: int, metric: str) -> list[list[str]]:
    """Write the body of a table; the best mean on test is bold (``**``), a row of fewer seeds says so."""
    best, lines = best_row(rows, "test", metric)["test_reestimated"]["mean"], []
    for row in rows:
        title = TITLES[row["method"]] + ("" if row["n_seeds"] == n_seeds else f" ({row['n_seeds']} of {n_seeds} seeds)")
        scores = [score_text(row[name], metric) for name in ("val_reestimated", "test_reestimated")]
        if row["test_reestimated"]["mean"] == best:
            scores[-1] = f"**{scores[-1]}**"
        lines.append([title, f"{row['passes']:.1f}", *scores, f"{row['seconds']:.0f}"])
    return lines


def score_text(score: dict[str, float | None], metric: str) -> str:
    """Write mean and spread, without the unit."""
    mean, spread = (
        None if value is None else metric_text(metric, value).removesuffix(" %") for value in score.values()
    )
    return f"{mean}" + ("" if spread is None else f" ± {spread}")


def markdown(summary: dict[str, Any]) -> str:
    """Write the tables in Markdown, one for each epoch of stage 1."""
    text = "BatchNorm statistics are re-estimated in every row.\n" if summary["batch_norm"] else ""
    for at in summary["at"]:
        names, rows = headings(summary["metric"]), rows_at(summary, at)
        body = table_rows(rows, len(summary["seeds"]), summary["metric"])
        lines = [names, ["---", *["---:"] * (len(names) - 1)], *body]
        text += f"\nStage 1 to epoch {at}:\n\n" + "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return text
