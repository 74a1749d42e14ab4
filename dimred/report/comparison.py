"""The comparison of stage 2 with its controls: from the files of the single runs to one JSON and one table."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import ConfigError

# Method -> what a reader is told. The order is that of the table.
TITLES = {
    "last": "last weights of stage 1",
    "ema": "EMA of the snapshots",
    "lawa": "LAWA, the k latest snapshots",
    "swa": "SWA, all snapshots (uniform soup)",
    "greedy_soup": "greedy soup of the snapshots",
    "trainable_averaging": "trainable averaging",
    "projected_sgd": "projected SGD",
    "p_bfgs_train": "**P-BFGS, searched on train**",
    "p_bfgs_val": "P-BFGS, searched on val",
    "cooldown": "cooldown of the same length",
    "plain_same_epochs": "plain training, same epochs",
    "plain_to_the_end": "plain training to the end of its schedule",
}
_SCORES = ("val", "test", "val_reestimated", "test_reestimated")
_COSTS = ("forward_epochs", "backward_epochs", "seconds")


def collect(folder: Path) -> dict[str, Any]:
    """What the runs in ``folder/seed_S/METHOD.json`` found, summed up.

    Returns:
        ``{"seeds": [...], "rows": [...], "runs": [...]}``; a row has the mean and the spread (the standard deviation
        over the seeds, null for one seed) of each accuracy, a fraction, and the mean of each cost; ``runs`` are the
        files. Costs are those after stage 1, passes in epochs of the training split.

    Raises:
        ConfigError: there are none.
    """
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("seed_*/*.json"))]
    runs = [run for run in runs if run.get("method") in TITLES]
    if not runs:
        raise ConfigError(f"{str(folder)!r} has no seed_S/METHOD.json; make them with dimred compare")
    runs.sort(key=lambda run: (list(TITLES).index(run["method"]), run["seed"]))
    rows = [_row(method, [run for run in runs if run["method"] == method]) for method in TITLES]
    return {"seeds": sorted({run["seed"] for run in runs}), "rows": [row for row in rows if row], "runs": runs}


def _row(method: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not runs:
        return {}
    row: dict[str, Any] = {"method": method, "n_seeds": len(runs), "epochs": runs[0]["epochs"]}
    for name in _SCORES:
        found = [run[name] for run in runs]
        row[name] = {"mean": float(np.mean(found)), "spread": float(np.std(found, ddof=1)) if len(found) > 1 else None}
    row |= {name: float(np.mean([run[name] for run in runs])) for name in _COSTS}
    return row | {"chosen": [run["chosen"] for run in runs]}


HEADINGS = (
    "", "epochs", "val, %", "test, %", "test, BatchNorm re-estimated, %", "forward passes", "backward passes", "seconds"
)  # fmt: skip


def cells(row: dict[str, Any], n_seeds: int, best: bool) -> list[str]:
    """One row of the table, as text; a row of fewer than all seeds says so."""

    def percent(score: dict[str, float | None]) -> str:
        mean, spread = score["mean"], score["spread"]
        return f"{100 * (mean or 0):.2f}" + ("" if spread is None else f" ± {100 * spread:.2f}")

    return [
        TITLES[row["method"]] + ("" if row["n_seeds"] == n_seeds else f" ({row['n_seeds']} of {n_seeds} seeds)"),
        str(row["epochs"]),
        percent(row["val_reestimated"]),
        percent(row["test"]),
        f"**{percent(row['test_reestimated'])}**" if best else percent(row["test_reestimated"]),
        f"{row['forward_epochs']:.1f}",
        f"{row['backward_epochs']:.1f}",
        f"{row['seconds']:.0f}",
    ]


def table_rows(summary: dict[str, Any]) -> list[list[str]]:
    """The body of the table; the best mean on test is bold (``**``)."""
    best = max(row["test_reestimated"]["mean"] for row in summary["rows"])
    n_seeds = len(summary["seeds"])
    return [cells(row, n_seeds, row["test_reestimated"]["mean"] == best) for row in summary["rows"]]


def markdown(summary: dict[str, Any]) -> str:
    """The table in Markdown."""
    lines = [list(HEADINGS), ["---", *["---:"] * (len(HEADINGS) - 1)], *table_rows(summary)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
