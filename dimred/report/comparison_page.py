"""The page of a comparison; and the same as a section of a run's page."""

from pathlib import Path
from typing import Any

from dimred.files.metrics_file import metric_text
from dimred.report.comparison import best_row, curves, headings, plain_title, rows_at, table_rows
from dimred.report.html import details, sentences, table
from dimred.report.page import Page, Picture
from dimred.report.plots import NARROW, plot_comparison, plot_curve
from dimred.report.verdict import comparison_verdict

PAGE = "compare.html"
COMPARISON_PICTURES = ("comparison", "curve")


def write_comparison_page(out: Path, summary: dict[str, Any]) -> Path:
    """Write ``compare.html`` and its pictures into the folder of a comparison; the page's path.

    Args:
        out: the folder.
        summary: see ``dimred.report.comparison.collect``.
    """
    page = Page(out, PAGE, COMPARISON_PICTURES)
    add_comparison(page, "Methods", summary, verdict=False)
    rows = [[plain_title(run["method"]), str(run["at"]), str(run["seed"]), run["chosen"]] for run in summary["runs"]]
    runs = sorted({f"{run['run']}, data {run['data']}" for run in summary["runs"]})
    listed = table(("method", "stage 1's epochs", "seed", "val chose"), [row for row in rows if row[-1]], kind="names")
    page.add("Runs", [], sentences([f"Stage 1: {'; '.join(runs)}."]) + details("What val chose in each", listed))
    return page.write(f"Comparison: {out.resolve().name}", sentences(comparison_verdict(summary), "verdict"))


def add_comparison(page: Page, heading: str, summary: dict[str, Any], *, verdict: bool = True) -> None:
    """A section: the table of each length of stage 1, the accuracies of the longest, and all of them over passes."""
    at, n_seeds, metric = summary["at"], len(summary["seeds"]), summary["metric"]
    last = rows_at(summary, at[-1])
    seeds = f"{'seeds' if n_seeds > 1 else 'seed'} {', '.join(map(str, summary['seeds']))}"
    words = [
        f"From the same stage 1, {seeds}.",
        *(["BatchNorm is re-estimated in every row."] if summary["batch_norm"] else []),
        "The val split chooses, the test split reports.",
        "Epochs' worth are all passes, forward and backward, of the training that made a network; the other costs are "
        "those after stage 1, with those for choosing.",
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
