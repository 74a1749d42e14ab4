"""The page of a merge by a metric: the candidates, the scores of the windows, and the coefficients."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dimred.merging.candidates import scores_of
from dimred.merging.scores import SPLITS, Trial, read_scores
from dimred.report.page import Page, Picture, key_figures, sentences, table
from dimred.report.plots import AVERAGE, PLAIN, new_figure

PAGE = "merge.html"


def write_merge_page(record: dict[str, Any], work: Path) -> Path:
    """Write ``merge.html`` and its pictures.

    Args:
        record: of the merge.
        work: the folder of its scores, where the page goes.

    Returns:
        The path of the page.
    """
    _, trials, _ = read_scores(work / "scores.jsonl")
    failed = [trial for trial in trials if trial.score is None]
    steps = [one["step"] for one in record["checkpoints"]]
    shares = np.array([one["coefficient"] for one in record["checkpoints"]])
    page = Page(work, PAGE, ("windows", "coefficients"))
    names = [f"**{row['name']}** (kept)" if row["kept"] else row["name"] for row in record["table"]]
    rows = [[name, row["kind"], *scores_of(row)] for name, row in zip(names, record["table"], strict=True)]
    page.add("Result", [], table(["candidate", "kind", *SPLITS], rows))
    told = f"Coefficients {', '.join(f'{share:.3f}' for share in shares)}."
    pictures = [
        Picture("windows", plot_windows(trials, steps, record["better"]), "Score of each window.", "Uniform windows."),
        Picture("coefficients", plot_coefficients(shares, steps), told, "How much each checkpoint counts."),
    ]
    page.add("Candidates", pictures)
    rows = [[one["path"], str(one["step"]), f"{one['coefficient']:.4f}"] for one in record["checkpoints"]]
    listed = table(["checkpoint", "step", "coefficient"], rows)
    page.add("Checkpoints", [], listed + sentences([f"BatchNorm: {record['batch_norm']}."]))
    if failed:
        rows = [[trial.split, trial.average.name, str(trial.failed)] for trial in failed]
        page.add("Failures", [], table(["split", "candidate", "why"], rows))
    best = dict(zip(SPLITS, scores_of(record["table"][0]), strict=True))
    facts = [(best[split], f"on {split}") for split in SPLITS if best[split]]
    facts.append((str(record["evaluations"]), f"evaluations; {record['ended']}"))
    said = [f"Use {work.with_suffix('')}: {record['kept']['name']}. Kept: {record['why']}."]
    return page.write(f"Merge of {len(steps)} checkpoints", sentences(said, "verdict") + key_figures(facts))


def plot_windows(trials: Sequence[Trial], steps: Sequence[int], better: str) -> Figure:
    """Draw the scores of uniform windows: the first checkpoint across, the last upwards; untried ones stay white."""
    grid = np.full((len(steps), len(steps)), np.nan)
    for trial in trials:
        members = np.flatnonzero(trial.average.coefficients)
        if trial.average.kind == "window" and trial.split == "search" and trial.score is not None:
            grid[members[-1], members[0]] = trial.score.value
    figure, axes = new_figure()
    palette = "viridis_r" if better == "lower" else "viridis"
    colours = axes.imshow(grid, origin="lower", cmap=palette, aspect="auto")
    figure.colorbar(colours, ax=axes, label="score on search")
    for axis, label in ((axes.xaxis, "step of the first checkpoint"), (axes.yaxis, "step of the last checkpoint")):
        axis.set_label_text(label)
        _label_by_step(axis, steps, 5)
    return figure


def _label_by_step(axis: Any, steps: Sequence[int], n_labels: int) -> None:
    """Label places along an axis by the steps of the checkpoints there."""
    axis.set_major_locator(MaxNLocator(n_labels, integer=True))
    axis.set_major_formatter(lambda place, _: str(steps[int(place)]) if 0 <= place < len(steps) else "")


def plot_coefficients(coefficients: np.ndarray, steps: Sequence[int]) -> Figure:
    """Draw how much each checkpoint counts in what was kept."""
    figure, axes = new_figure()
    axes.bar(range(len(steps)), coefficients / coefficients.sum(), color=AVERAGE)
    axes.axhline(0, color=PLAIN, lw=0.8)
    _label_by_step(axes.xaxis, steps, 6)
    axes.set(xlabel="step of the checkpoint", ylabel="coefficient")
    return figure
