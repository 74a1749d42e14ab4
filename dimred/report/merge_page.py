"""The page of a search over checkpoints: windows, coefficients, the plane of the first two directions, the history."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dimred.merging.final import SPLITS, scores_of
from dimred.merging.trials import Trial, read_trials
from dimred.report.html import key_figures, sentences, table
from dimred.report.page import Page, Picture
from dimred.report.plots import AVERAGE, LIGHT, PLAIN, REJECTED, STAGE_2, legend_below, new_figure
from dimred.subspace.spectrum import effective_rank, principal_directions

PAGE = "merge.html"
_PICTURES = ("windows", "coefficients", "merge-plane", "history")
_KINDS = {"window": ("s", PLAIN), "profile": ("v", AVERAGE), "soup": ("P", REJECTED), "search": ("o", STAGE_2)}


def write_merge_page(record: dict[str, Any], work: Path) -> Path:
    """Write ``merge.html`` of a record, and its pictures, into the folder of the trials; the page's path."""
    _, trials, _ = read_trials(work / "trials.jsonl")
    searched = [trial for trial in trials if trial.split == "search" and trial.score is not None]
    failed = [trial for trial in trials if trial.score is None]
    steps = [one["step"] for one in record["checkpoints"]]
    kept = np.array(record["kept"]["coefficients"])
    lower = record["better"] == "lower"
    page = Page(work, PAGE, _PICTURES)
    names = [f"**{row['name']}** (kept)" if row["kept"] else row["name"] for row in record["table"]]
    rows = [[name, row["kind"], *scores_of(row)] for name, row in zip(names, record["table"], strict=True)]
    page.add("Result", [], table(["candidate", "kind", *SPLITS], rows))
    shares = ", ".join(f"{share:.3f}" for share in kept / kept.sum())
    drawn: list[tuple[str, Figure, str, str]] = [
        ("windows", plot_windows(searched, steps, lower), "Score of each window.", "Uniform windows by their end."),
        ("coefficients", plot_coefficients(kept, steps), f"Coefficients {shares}.", "What each checkpoint counts."),
        ("history", plot_history(searched, lower), "Score of each trial.", "Trials on search, and the best so far."),
    ]
    gram = np.load(work / "gram.npy") if (work / "gram.npy").exists() else np.zeros((1, 1))
    if effective_rank(np.linalg.eigvalsh(gram)) >= 2:
        caption = "Trials and checkpoints in the plane of the first two directions; the colour is the score on search."
        drawn.insert(2, ("merge-plane", plot_trials(searched, gram, kept, lower), "Where the trials are.", caption))
    pictures = [Picture(*one) for one in drawn]
    page.add("Search", pictures)
    rows = [[one["path"], str(one["step"]), f"{one['coefficient']:.4f}"] for one in record["checkpoints"]]
    listed = table(["checkpoint", "step", "coefficient"], rows)
    page.add("Checkpoints", [], listed + sentences([f"BatchNorm: {record['batch_norm']}."]))
    if failed:
        rows = [[str(trial.number), trial.candidate.name, str(trial.failed)] for trial in failed]
        page.add("Failures", [], table(["trial", "candidate", "why"], rows))
    best = dict(zip(SPLITS, scores_of(next((row for row in record["table"] if row["kept"]), {})), strict=True))
    facts = [(best[split], f"on {split}") for split in ("select", "test") if best[split]]
    facts.append((str(len(trials)), f"evaluations; {record['ended']}"))
    said = [f"Use {work.with_suffix('')}: {record['kept']['name']}. Kept: {record['why']}."]
    return page.write(f"Merge of {len(steps)} checkpoints", sentences(said, "verdict") + key_figures(facts))


def plot_windows(trials: Sequence[Trial], steps: Sequence[int], lower: bool) -> Figure:
    """The scores of uniform windows: the first checkpoint across, the last upwards; untried ones stay white."""
    grid = np.full((len(steps), len(steps)), np.nan)
    for trial in trials:
        members = np.flatnonzero(trial.candidate.coefficients)
        if trial.candidate.kind == "window" and trial.score is not None:
            grid[members[-1], members[0]] = trial.score.value
    figure, axes = new_figure()
    colours = axes.imshow(grid, origin="lower", cmap="viridis_r" if lower else "viridis", aspect="auto")
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
    """How much each checkpoint counts in what was kept."""
    figure, axes = new_figure()
    axes.bar(range(len(steps)), coefficients / coefficients.sum(), color=AVERAGE)
    axes.axhline(0, color=PLAIN, lw=0.8)
    _label_by_step(axes.xaxis, steps, 6)
    axes.set(xlabel="step of the checkpoint", ylabel="coefficient")
    return figure


def plot_history(trials: Sequence[Trial], lower: bool) -> Figure:
    """The score of each trial on ``search`` in turn, by kind, and the best so far."""
    figure, axes = new_figure()
    values = np.array([trial.score.value for trial in trials if trial.score is not None])
    best = np.minimum.accumulate(values) if lower else np.maximum.accumulate(values)
    axes.step(range(1, len(values) + 1), best, where="post", color=LIGHT, lw=2, label="best so far")
    for kind, (marker, colour) in _KINDS.items():
        places = [number for number, trial in enumerate(trials) if trial.candidate.kind == kind]
        if places:
            axes.plot(np.add(places, 1), values[places], marker, color=colour, ms=4, label=kind)
    if len(values):
        low, high = np.percentile(values, [0, 90] if lower else [10, 100])
        axes.set_ylim(low - 0.1 * (high - low) - 1e-12, high + 0.1 * (high - low) + 1e-12)
    axes.set(xlabel="evaluation", ylabel="score on search")
    legend_below(figure, axes, 3)
    return figure


def plot_trials(trials: Sequence[Trial], gram: np.ndarray, kept: np.ndarray, lower: bool) -> Figure:
    """Trials and checkpoints in the plane of the first two principal directions through the checkpoints' mean.

    The coordinates of sum_i c_i x_i with sum(c) = 1 along the direction sum_j d_j x_j are d' G c, for the Gram matrix G
    about the mean.
    """
    figure, axes = new_figure()
    to_plane = principal_directions(gram, 2) @ gram
    checkpoints = to_plane @ np.eye(len(gram))
    axes.plot(*checkpoints, "-", color=PLAIN, lw=0.8, marker=".", label="checkpoints in order")
    values = np.array([trial.score.value for trial in trials if trial.score is not None])
    limits = np.percentile(values, [0, 90] if lower else [10, 100]) if len(values) else (0, 1)
    style = {"cmap": "viridis_r" if lower else "viridis", "norm": Normalize(*limits), "edgecolors": "white", "lw": 0.3}
    for kind, (marker, _) in _KINDS.items():
        chosen = [number for number, trial in enumerate(trials) if trial.candidate.kind == kind]
        if chosen:
            coefficients = np.array([trials[number].candidate.coefficients for number in chosen])
            points = to_plane @ (coefficients / coefficients.sum(axis=1, keepdims=True)).T
            drawn = axes.scatter(*points, c=values[chosen], marker=marker, s=28, label=kind, **style)
    axes.plot(*(to_plane @ (kept / kept.sum())), "*", color=STAGE_2, ms=14, mec="white", label="kept")
    figure.colorbar(drawn, ax=axes, label="score on search")
    axes.set(xlabel="first direction", ylabel="second direction")
    legend_below(figure, axes, 3)
    return figure
