"""The comparison of stage 2 with its controls: from the files of the single runs to one JSON and one table."""

import json
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
HEADINGS = (
    "", "epochs", "val, %", "test, %", "test, BatchNorm re-estimated, %", "forward passes", "backward passes", "seconds"
)  # fmt: skip
_SCORES = ("val", "test", "val_reestimated", "test_reestimated")
_COSTS = ("forward_epochs", "backward_epochs", "seconds")


def collect(folder: Path) -> dict[str, Any]:
    """Sum up what the runs in ``folder/seed_S/METHOD.json`` found.

    Returns:
        ``{"seeds": [...], "rows": [...], "runs": [...]}``; a row has the mean and the spread (the standard deviation
        over the seeds, null for one seed) of each accuracy, a fraction, and the mean of each cost; ``runs`` are the
        files. Costs are those after stage 1, passes in epochs of the training split.

    Raises:
        ConfigError: there are none.
    """
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("seed_*/*.json"))]
    runs = sorted((run for run in files if run.get("method") in TITLES), key=lambda run: int(run["seed"]))
    by_method = {method: [run for run in runs if run["method"] == method] for method in TITLES}
    if not runs:
        raise ConfigError(f"{str(folder)!r} has no seed_S/METHOD.json; make them with dimred compare")
    return {
        "seeds": sorted({run["seed"] for run in runs}),
        "rows": [_row(method, of_method) for method, of_method in by_method.items() if of_method],
        "runs": [run for of_method in by_method.values() for run in of_method],
    }


def _row(method: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {"method": method, "n_seeds": len(runs), "epochs": runs[0]["epochs"]}
    for name in _SCORES:
        found = [run[name] for run in runs]
        row[name] = {"mean": float(np.mean(found)), "spread": float(np.std(found, ddof=1)) if len(found) > 1 else None}
    row |= {name: float(np.mean([run[name] for run in runs])) for name in _COSTS}
    return row | {"chosen": [run["chosen"] for run in runs]}


def table_rows(summary: dict[str, Any]) -> list[list[str]]:
    """The body of the table as text; the best mean on test is bold (``**``), a row of fewer seeds says so."""
    best, n_seeds = max(row["test_reestimated"]["mean"] for row in summary["rows"]), len(summary["seeds"])
    lines = []
    for row in summary["rows"]:
        title = TITLES[row["method"]] + ("" if row["n_seeds"] == n_seeds else f" ({row['n_seeds']} of {n_seeds} seeds)")
        scores = [_percent(row[name]) for name in ("val_reestimated", "test", "test_reestimated")]
        if row["test_reestimated"]["mean"] == best:
            scores[-1] = f"**{scores[-1]}**"
        costs = [f"{row['forward_epochs']:.1f}", f"{row['backward_epochs']:.1f}", f"{row['seconds']:.0f}"]
        lines.append([title, str(row["epochs"]), *scores, *costs])
    return lines


def _percent(score: dict[str, float | None]) -> str:
    mean, spread = score["mean"] or 0.0, score["spread"]
    return f"{100 * mean:.2f}" + ("" if spread is None else f" ± {100 * spread:.2f}")


def markdown(summary: dict[str, Any]) -> str:
    """The table in Markdown."""
    lines = [list(HEADINGS), ["---", *["---:"] * (len(HEADINGS) - 1)], *table_rows(summary)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
