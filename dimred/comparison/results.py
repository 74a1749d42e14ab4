"""Sum up a comparison: turn its rows' files into one JSON object, Markdown tables, and an HTML page."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from dimred.comparison.comparison import STAGE_2
from dimred.comparison.methods import METHODS
from dimred.comparison.rows import Row, read_row
from dimred.errors import ConfigError, FaultError
from dimred.report.page import Page, Picture, details, sentences, table
from dimred.report.plots import plot_curve
from dimred.report.words import duration, gain_text
from dimred.run_files.metric import Metric

PAGE = "compare.html"
_SCORE = "test_reestimated"
_SCORES = ("val", "test", "val_reestimated", "test_reestimated", "val_loss", "test_loss")


def collect(folder: Path) -> dict[str, Any]:
    """Sum up the files ``folder/seed_S/at_EPOCH/METHOD.json``.

    Returns:
        A dictionary with ``seeds``; ``at``, the epochs at which stage 1 is treated as ended; ``metrics``, the main one
        first; ``batch_norm``, whether the network has BatchNorm; ``rows``; ``runs``, what the files hold; and
        ``diverged``, what the files hold for methods that left no network because their training diverged. ``rows`` has
        an entry for each method and each of ``at``, with the mean ``passes`` and ``seconds`` (see ``MethodResult``),
        and each score's ``mean`` and ``spread`` over the seeds. The spread is the standard deviation, None for one
        seed.

    Raises:
        ConfigError: the folder has no such file.
        FaultError: every method diverged.
    """
    files = [read_row(path) for path in sorted(folder.glob("seed_*/at_*/*.json")) if path.stem in METHODS]
    if not files:
        raise ConfigError(f"{str(folder)!r} has no seed_S/at_EPOCH/METHOD.json; make them with dimred compare")
    runs = [run for run in files if _SCORE in run]
    diverged = [run for run in files if run not in runs]
    if not runs:
        raise FaultError(f"no method has a network, because every training diverged; see the logs in {str(folder)!r}")
    methods = list(METHODS)
    runs.sort(key=lambda run: (run["at"], methods.index(run["method"]), run["seed"]))
    groups = groupby(runs, key=lambda run: (run["at"], run["method"]))
    return {
        "seeds": sorted({run["seed"] for run in files}),
        "at": sorted({run["at"] for run in runs}),
        "metrics": runs[0]["metrics"],
        "batch_norm": any(run["batch_norm"] for run in runs),
        "rows": [_row(at, method, list(of_method)) for (at, method), of_method in groups],
        "runs": runs,
        "diverged": diverged,
    }


def _row(at: int, method: str, runs: list[Row]) -> Row:
    row: Row = {"method": method, "title": runs[0]["title"], "at": at, "n_seeds": len(runs)}
    row["chosen"] = [run["chosen"] for run in runs]
    row |= {name: _mean_and_spread([run[name] for run in runs]) for name in _SCORES}
    row["other_metrics"] = {
        other: {name: _mean_and_spread([run["other_metrics"][other][name] for run in runs]) for name in figures}
        for other, figures in runs[0]["other_metrics"].items()
    }
    return row | {name: float(np.mean([run[name] for run in runs])) for name in ("passes", "seconds")}


def _mean_and_spread(scores: Sequence[float | None]) -> dict[str, float | None]:
    values = [math.nan if score is None else score for score in scores]  # JSON has None for what was not finite
    return {"mean": float(np.mean(values)), "spread": float(np.std(values, ddof=1)) if len(values) > 1 else None}


def metrics_in(summary: dict[str, Any]) -> list[Metric]:
    """Return a summary's metrics (see ``collect``), the main one first."""
    return [Metric(**metric) for metric in summary["metrics"]]


def rows_at(summary: dict[str, Any], at: int) -> list[Row]:
    """Return a summary's rows for a stage 1 that ends at epoch ``at``; see ``collect``."""
    return [row for row in summary["rows"] if row["at"] == at]


def best_row(rows: Iterable[Row], split: str, metric: Metric) -> Row:
    """Return the row whose mean metric on a split is best.

    If it is not known whether higher is better, return the row with the lowest mean loss on the split.

    Args:
        rows: a summary's rows, at least one.
        split: ``val`` or ``test``.
        metric: the main metric.
    """
    if metric.higher_is_better is not None:
        name = f"{split}_reestimated"
        sign = -1.0 if metric.higher_is_better else 1.0
    else:
        name = f"{split}_loss"
        sign = 1.0

    def badness(row: Row) -> float:
        mean = sign * float(row[name]["mean"])
        return mean if math.isfinite(mean) else math.inf

    return min(rows, key=badness)


def curves(summary: dict[str, Any]) -> dict[str, list[Row]]:
    """Group a summary's rows by their method's title, each group in the order of passes."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(summary["rows"], key=lambda row: row["passes"]):
        groups.setdefault(row["title"], []).append(row)
    return groups


def headings(metrics: Sequence[Metric]) -> list[str]:
    """Return the column headings for ``table_rows``; the metrics come from ``metrics_in``."""
    unit = "%" if metrics[0].is_fraction else metrics[0].name
    others = [f"test {metric.axis[0]}" for metric in metrics[1:]]
    return ["", "passes", *(f"{split}, {unit}" for split in ("val", "test")), *others, "seconds"]


def table_rows(rows: Sequence[Row], n_seeds: int, metrics: Sequence[Metric]) -> list[list[str]]:
    """Return each row's cells as text; the best score on ``test`` is bold (``**``).

    Args:
        rows: a summary's rows.
        n_seeds: the summary's number of seeds; rows with fewer seeds say so in their first cell.
        metrics: the metrics, the main one first.
    """
    best = best_row(rows, "test", metrics[0])[_SCORE]["mean"]
    lines = []
    for row in rows:
        title = f"**{row['title']}**" if row["method"] == STAGE_2 else row["title"]
        title += "" if row["n_seeds"] == n_seeds else f" ({row['n_seeds']} of {n_seeds} seeds)"
        scores = [score_text(row[name], metrics[0]) for name in ("val_reestimated", "test_reestimated")]
        if row["test_reestimated"]["mean"] == best:
            scores[-1] = f"**{scores[-1]}**"
        scores += [score_text(row["other_metrics"][other.name][_SCORE], other) for other in metrics[1:]]
        lines.append([title, f"{row['passes']:.1f}", *scores, f"{row['seconds']:.0f}"])
    return lines


def score_text(score: dict[str, float | None], metric: Metric) -> str:
    """Format a score's mean and spread, such as ``93.10 ± 0.20``, without the unit."""
    mean, spread = (None if value is None else metric.text(value).removesuffix(" %") for value in score.values())
    return f"{mean}" + ("" if spread is None else f" ± {spread}")


def markdown(summary: dict[str, Any]) -> str:
    """Return a summary as Markdown: a table for each epoch at which stage 1 is treated as ended."""
    text = "BatchNorm statistics are re-estimated in every row.\n" if summary["batch_norm"] else ""
    for at in summary["at"]:
        names = headings(metrics_in(summary))
        rows = rows_at(summary, at)
        body = table_rows(rows, len(summary["seeds"]), metrics_in(summary))
        lines = [names, ["---", *["---:"] * (len(names) - 1)], *body]
        text += f"\nStage 1 to epoch {at}:\n\n" + "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return text + "".join(f"\n{sentence}\n" for sentence in divergences(summary))


def divergences(summary: dict[str, Any]) -> list[str]:
    """Return a sentence for each row whose training diverged, at some rates or at all of them."""
    ends = [(run, "") for run in summary["runs"] if run["diverged"]]
    ends += [(run, f" and left no network in {duration(run['seconds'])}") for run in summary["diverged"]]
    return [
        f"{run['title']}, stage 1 to epoch {run['at']}, seed {run['seed']}: training diverged"
        f"{run['diverged'] and ' '}{run['diverged']}{end}."
        for run, end in ends
    ]


def write_comparison_page(out: Path, summary: dict[str, Any]) -> None:
    """Write a summary as ``compare.html`` and its pictures into a folder.

    Args:
        out: the folder.
        summary: see ``collect``.

    Raises:
        OSError: a file can't be written.
    """
    page = Page(out, PAGE)
    at = summary["at"]
    n_seeds = len(summary["seeds"])
    metrics = metrics_in(summary)
    metric = metrics[0]
    seeds = f"{'seeds' if n_seeds > 1 else 'seed'} {', '.join(map(str, summary['seeds']))}"
    words = [
        f"From the same stage 1, {seeds}.",
        *(["BatchNorm is re-estimated in every row."] if summary["batch_norm"] else []),
        "Choices are made on the val split; results are reported on the test split.",
        "Passes count the epochs of the training that made a network. Seconds leave out stage 1, but include choices, "
        "and training runs that were not chosen or that diverged.",
        *divergences(summary),
    ]
    tables = {epochs: table(headings(metrics), table_rows(rows_at(summary, epochs), n_seeds, metrics)) for epochs in at}
    tables_html = sentences([f"Stage 1 to epoch {at[-1]}:"]) + tables.pop(at[-1])
    tables_html += "".join(details(f"Stage 1 to epoch {epochs}", text) for epochs, text in tables.items())
    best = best_row(rows_at(summary, at[-1]), "test", metric)
    picture = Picture(
        "curve",
        plot_curve(curves(summary), metric),
        f"Test {metric.name} over passes, stage 1 to epochs {', '.join(map(str, at))}. At the last of these the best "
        f"is {best['title']} with {metric.text(best[_SCORE]['mean'])}.",
        f"Test {metric.name} over all forward and backward passes, one line for each method; bands are the spread.",
    )
    page.add("Methods", [picture], before=sentences(words) + tables_html)
    rows = [[run["title"], str(run["at"]), str(run["seed"]), run["chosen"]] for run in summary["runs"]]
    runs = sorted({f"{run['run']}, data {run['data']}" for run in summary["runs"]})
    choices = table(("method", "stage 1's epochs", "seed", "val chose"), [row for row in rows if row[-1]], kind="names")
    page.add("Runs", [], sentences([f"Stage 1: {'; '.join(runs)}."]) + details("What val chose in each", choices))
    page.write(f"Comparison: {out.resolve().name}", sentences(comparison_verdict(summary), "verdict"))


def comparison_verdict(summary: dict[str, Any]) -> list[str]:
    """Describe in sentences the method that ``val`` chooses after the longest stage 1: its gains and its cost."""
    at = summary["at"][-1]
    n_seeds = len(summary["seeds"])
    metric = metrics_in(summary)[0]
    rows = {row["method"]: row for row in rows_at(summary, at)}
    choice, best = (best_row(rows.values(), split, metric) for split in ("val", "test"))
    unit = " %" if metric.is_fraction else f" ({metric.name})"
    seeds = f"over {n_seeds} seeds" if n_seeds > 1 else "of one seed"
    lines = [
        f"After {at} epochs of stage 1 the val split chooses: {choice['title']}, which has "
        f"{score_text(choice[_SCORE], metric)}{unit} on test {seeds}"
        f"{', BatchNorm re-estimated' if summary['batch_norm'] else ''}."
    ]
    others = [rows[name] for name in ("last", "average", "cooldown") if name in rows and name != choice["method"]]
    if others:
        if metric.is_fraction:
            gains = [f"{_paired_gain(summary, choice, other)} {other['title']}" for other in others]
        else:
            gains = [f"against {score_text(other[_SCORE], metric)} for {other['title']}" for other in others]
        lines.append(f"That is {', '.join(gains[:-1])}{' and ' if gains[1:] else ''}{gains[-1]}.")
    lines.append(f"It took {choice['passes']:.1f} passes in all, and {duration(choice['seconds'])} besides stage 1.")
    if best is not choice:
        lines.append(f"The best on test would have been: {best['title']}, {metric.text(best[_SCORE]['mean'])}.")
    if n_seeds == 1 and metric.is_fraction:
        lines.append("With one seed, differences below half a point mean nothing.")
    return lines


def _paired_gain(summary: dict[str, Any], choice: Row, other: Row) -> str:
    """Say how far one method is above another: the mean and spread of the differences on the same seed."""
    scores = [
        {run["seed"]: run[_SCORE] for run in summary["runs"] if all(run[key] == row[key] for key in ("method", "at"))}
        for row in (choice, other)
    ]
    both = [scores[0][seed] - scores[1][seed] for seed in scores[0].keys() & scores[1].keys()]
    if len(both) > 1:
        return gain_text(float(np.mean(both)), float(np.std(both, ddof=1)))
    return gain_text(choice[_SCORE]["mean"] - other[_SCORE]["mean"])
