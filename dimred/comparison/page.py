"""The page of a comparison; and the same as a section of a run's page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dimred.comparison.summary import Row, best_row, curves, headings, plain_title, rows_at, score_text, table_rows
from dimred.io.metrics_file import ACCURACY, metric_text
from dimred.report.html import details, sentences, table
from dimred.report.page import COMPARISON_PICTURES, Page, Picture
from dimred.report.plots import NARROW, plot_comparison, plot_curve
from dimred.report.verdict import duration, gain_text

PAGE = "compare.html"
_SCORE = "test_reestimated"


def write_comparison_page(out: Path, summary: dict[str, Any]) -> Path:
    """Write ``compare.html`` and its pictures into the folder of a comparison.

    Args:
        out: the folder.
        summary: as ``collect`` returns it.

    Returns:
        The page's path.
    """
    page = Page(out, PAGE, COMPARISON_PICTURES)
    add_comparison(page, "Methods", summary, verdict=False)
    rows = [[plain_title(run["method"]), str(run["at"]), str(run["seed"]), run["chosen"]] for run in summary["runs"]]
    runs = sorted({f"{run['run']}, data {run['data']}" for run in summary["runs"]})
    listed = table(("method", "stage 1's epochs", "seed", "val chose"), [row for row in rows if row[-1]], kind="names")
    page.add("Runs", [], sentences([f"Stage 1: {'; '.join(runs)}."]) + details("What val chose in each", listed))
    return page.write(f"Comparison: {out.resolve().name}", sentences(comparison_verdict(summary), "verdict"))


def add_comparison(page: Page, heading: str, summary: dict[str, Any], *, verdict: bool = True) -> None:
    """Add a section: a table for each epoch at which stage 1 ends, the scores at the last one, all scores over passes.

    Args:
        page: of a comparison or of a run.
        heading: of the section.
        summary: as ``collect`` returns it.
        verdict: whether the section begins with the verdict.
    """
    at, n_seeds, metric = summary["at"], len(summary["seeds"]), summary["metric"]
    last = rows_at(summary, at[-1])
    seeds = f"{'seeds' if n_seeds > 1 else 'seed'} {', '.join(map(str, summary['seeds']))}"
    words = [
        f"From the same stage 1, {seeds}.",
        *(["BatchNorm is re-estimated in every row."] if summary["batch_norm"] else []),
        "The val split chooses, the test split reports.",
        "Passes are those of the training that made a network, in epochs; seconds are those after stage 1, with "
        "rejected trainings and choices.",
    ]
    tables = {epochs: table(headings(metric), table_rows(rows_at(summary, epochs), n_seeds, metric)) for epochs in at}
    shown = sentences([f"Stage 1 to epoch {at[-1]}:"]) + tables.pop(at[-1])
    shown += "".join(details(f"Stage 1 to epoch {epochs}", one) for epochs, one in tables.items())
    scores = [(plain_title(row["method"]), *row["test_reestimated"].values()) for row in last]
    best = best_row(last, "test", metric)
    pictures = [
        Picture(
            "comparison", plot_comparison(scores, metric),
            f"Test {metric} of {len(last)} methods; the best is {plain_title(best['method'])} with "
            f"{metric_text(metric, best['test_reestimated']['mean'])}.",
            f"Test {metric} after {at[-1]} epochs of stage 1; bars are the spread over the seeds.",
        ),
        Picture(
            "curve", plot_curve(curves(summary), NARROW, metric),
            f"Test {metric} over passes, stage 1 to epochs {', '.join(map(str, at))}.",
            f"Test {metric} over all forward and backward passes, one line a method; bands are the spread.",
        ),
    ]  # fmt: skip
    before = sentences(comparison_verdict(summary)) if verdict else ""
    page.add(heading, pictures, before=before + sentences(words) + shown)


def comparison_verdict(summary: dict[str, Any]) -> list[str]:
    """Write what ``val`` takes after the longest stage 1, what that gained over what, and what it cost."""
    at, n_seeds, metric = summary["at"][-1], len(summary["seeds"]), summary["metric"]
    rows = {row["method"]: row for row in rows_at(summary, at)}
    chosen, best = (best_row(rows.values(), split, metric) for split in ("val", "test"))
    unit = " %" if metric == ACCURACY else f" ({metric})"
    seeds = f"over {n_seeds} seeds" if n_seeds > 1 else "of one seed"
    said = [
        f"After {at} epochs of stage 1 the val split takes: {plain_title(chosen['method'])}, which has "
        f"{score_text(chosen[_SCORE], metric)}{unit} on test {seeds}"
        f"{', BatchNorm re-estimated' if summary['batch_norm'] else ''}."
    ]
    others = [rows[name] for name in ("last", "average") if name in rows and name != chosen["method"]]
    if others:
        if metric == ACCURACY:
            gains = [f"{_paired_gain(summary, chosen, other)} {plain_title(other['method'])}" for other in others]
        else:
            gains = [f"beside {score_text(one[_SCORE], metric)} of {plain_title(one['method'])}" for one in others]
        said.append(f"That is {' and '.join(gains)}.")
    said.append(f"It cost {chosen['passes'] - at:.1f} passes after stage 1, and {duration(chosen['seconds'])}.")
    if best is not chosen:
        said.append(
            f"The best on test would have been: {plain_title(best['method'])}, "
            f"{metric_text(metric, best[_SCORE]['mean'])}."
        )
    if n_seeds == 1 and metric == ACCURACY:
        said.append("Of one seed, take differences below half a point for nothing.")
    return said


def _paired_gain(summary: dict[str, Any], one: Row, other: Row) -> str:
    """Write how far one method is above another: mean and spread of the differences between rows of one seed."""
    found: Sequence[dict[int, float]] = [
        {
            run["seed"]: run[_SCORE]
            for run in summary["runs"]
            if (run["method"], run["at"]) == (row["method"], row["at"])
        }
        for row in (one, other)
    ]
    both = [found[0][seed] - found[1][seed] for seed in found[0].keys() & found[1].keys()]
    if len(both) > 1:
        return gain_text(float(np.mean(both)), float(np.std(both, ddof=1)))
    return gain_text(one[_SCORE]["mean"] - other[_SCORE]["mean"])
