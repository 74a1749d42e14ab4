"""Pictures of a run, each a function that returns a figure; ``save_figure`` writes it as PNG and SVG.

The second half is about the plane of the first two principal directions: where both stages were, and the loss there.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from dimred.files.atomic import atomic_write
from dimred.subspace.basis import SubspaceBasis

# Okabe and Ito's colours stay apart with every common kind of colour blindness; markers differ too.
PLAIN, STAGE_2, AVERAGE, LIGHT, REJECTED = "#000000", "#D55E00", "#0072B2", "#56B4E9", "#CC79A7"
_COLOURS = (PLAIN, STAGE_2, AVERAGE, LIGHT, REJECTED, "#009E73", "#E69F00")
_LINES, _MARKERS = ("-", "--", ":"), "osd^vxp*"

Size = tuple[float, float]
NARROW: Size = (4.8, 3.6)  # inches: letters stay readable where a telephone scales it to its width
WIDE: Size = (8, 4.5)

# Outcome of a step -> marker, colour, label.
_OUTCOMES = {
    "accepted": ("o", STAGE_2, "accepted"),
    "no_decrease": ("x", PLAIN, "rejected: no trial accepted"),
    "non_finite_gradient": ("^", REJECTED, "skipped: not finite"),
}


def new_figure(size: Size = NARROW, ratios: Sequence[float] = (1,)) -> tuple[Figure, Any]:
    """A figure of so many inches, and its axes; for several ``ratios``, heights from above, an array of axes."""
    with mpl.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        return figure, figure.subplots(len(ratios), sharex=True, height_ratios=ratios)


def legend_below(figure: Figure, axes: Any, columns: int = 2) -> None:
    """Put a legend under the picture, where it hides nothing."""
    entries = axes.get_legend_handles_labels()
    figure.legend(*entries, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def save_figure(figure: Figure, folder: Path, name: str) -> str:
    """Write ``name.png`` and ``name.svg``; return the SVG text, which is the same for the same figure."""
    png, svg = io.BytesIO(), io.StringIO()
    figure.savefig(png)
    with mpl.rc_context({"svg.hashsalt": "dimred", "svg.fonttype": "path"}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    atomic_write(folder / f"{name}.png", png.getvalue())
    atomic_write(folder / f"{name}.svg", svg.getvalue())
    return svg.getvalue()


def plot_accuracy(
    plain: Mapping[int, float],
    stage_2: Mapping[int, float],
    snapshots_taken: tuple[int, int] | None,
    average: float | None = None,
    size: Size = WIDE,
) -> Figure:
    """Accuracy over epochs: plain training, stage 2 from its branching point, the average of the snapshots.

    Args:
        plain: epoch -> accuracy as a fraction.
        stage_2: the same, the branching point included; empty where there is none.
        snapshots_taken: the first and the last epoch that gave a snapshot; None where that is not known.
        average: accuracy of the average of the snapshots, where it is known.
    """
    figure, axes = new_figure(size)
    if snapshots_taken:
        axes.axvspan(*snapshots_taken, color=LIGHT, alpha=0.12, lw=0, label="snapshots taken")
    axes.plot(list(plain), _percent(plain.values()), color=PLAIN, lw=1, label="plain training")
    if average is not None:
        axes.axhline(100 * average, ls="--", color=AVERAGE, lw=1.5, label="average of the snapshots")
    if stage_2:
        axes.plot(list(stage_2), _percent(stage_2.values()), "o-", color=STAGE_2, lw=2, ms=4, label="stage 2")
    # Single collapses would flatten the part that matters, so the axis starts at the 10th percentile.
    first = snapshots_taken[0] if snapshots_taken else 0
    late = [accuracy for epoch, accuracy in plain.items() if epoch >= first] or list(plain.values())
    others = [*stage_2.values(), *([] if average is None else [average])]
    lowest, highest = min([float(np.percentile(late, 10)), *others]), max([*plain.values(), *others])
    margin = 0.1 * (highest - lowest) + 0.002
    axes.set(ylim=(100 * (lowest - margin), 100 * (highest + margin)), xlim=(0, max([*plain, *stage_2]) + 1))
    axes.set(xlabel="epoch", ylabel="accuracy, %")
    legend_below(figure, axes)
    return figure


def plot_loss(epochs: Sequence[int], losses: Sequence[float]) -> Figure:
    """Stage 1's training loss, that of the last step of each epoch."""
    figure, axes = new_figure()
    axes.plot(epochs, losses, color=PLAIN, lw=1)
    axes.set(xlabel="epoch", ylabel="training loss, last step")
    return figure


def plot_spectrum(shares: np.ndarray) -> Figure:
    """Share of the snapshots' variance along each direction, (k,) fractions of 1, and their running sum."""
    figure, axes = new_figure()
    numbers = np.arange(1, len(shares) + 1)
    axes.bar(numbers, 100 * shares, color=AVERAGE, label="each direction")
    axes.plot(numbers, 100 * np.cumsum(shares), "o-", color=STAGE_2, ms=3, lw=1.5, label="all up to it")
    axes.set(xlabel="principal direction", ylabel="share of the variance, %", ylim=(0, 102))
    legend_below(figure, axes)
    return figure


def plot_steps(steps: Sequence[Mapping[str, Any]]) -> Figure:
    """Stage 2's loss step by step, accepted steps and rejected ones, and the number of trials of each."""
    figure, (upper, lower) = new_figure((4.8, 4.6), ratios=(2.2, 1))
    numbers = np.array([step["step"] for step in steps])
    upper.plot(numbers, _column(steps, "loss"), color=LIGHT, lw=1, label="before the step, same batch")
    for outcome, (marker, colour, label) in _OUTCOMES.items():
        chosen = np.array([step["outcome"] == outcome for step in steps])
        if chosen.any():
            after = _column(steps, "loss_after")[chosen]
            upper.plot(numbers[chosen], after, marker, color=colour, ms=4, label=label)
    lower.bar(numbers, _column(steps, "n_trials"), color=AVERAGE)
    upper.set(ylabel="loss of the batch")
    lower.set(xlabel="step of stage 2", ylabel="trials")
    legend_below(figure, upper)
    return figure


def plot_captured(steps: Sequence[Mapping[str, Any]]) -> Figure:
    """Share of the gradient inside the subspace, |P g|^2 / |g|^2, step by step."""
    figure, axes = new_figure()
    shares = 100 * _column(steps, "captured_share")
    axes.plot([step["step"] for step in steps], shares, "o-", color=STAGE_2, ms=3, lw=1)
    if np.isfinite(shares).any():
        axes.axhline(float(np.nanmean(shares)), color=PLAIN, ls="--", lw=1, label="mean")
        legend_below(figure, axes)
    axes.set(xlabel="step of stage 2", ylabel="gradient inside, %", ylim=(0, None))
    return figure


def plot_comparison(rows: Sequence[tuple[str, float, float | None]]) -> Figure:
    """Accuracy of each method: (name, mean as a fraction, spread over the seeds or None) each, drawn from above."""
    figure, axes = new_figure((4.8, 1.2 + 0.3 * len(rows)))
    for place, (name, mean, spread) in enumerate(reversed(rows)):
        colour = STAGE_2 if "P-BFGS" in name else PLAIN
        bar = None if spread is None else 100 * spread
        axes.errorbar(100 * mean, place, xerr=bar, fmt="o", color=colour, capsize=3)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in reversed(rows)], fontsize=8)
    axes.set(xlabel="test accuracy, %", axisbelow=True)
    axes.grid(axis="x", color="#e5e5e5")
    return figure


def plot_curve(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Test accuracy over all passes, one line a method, the spread over the seeds as a band.

    Args:
        curves: name -> rows of ``dimred.report.comparison``, by rising passes.
    """
    figure, axes = new_figure((8, 4.5 + 0.2 * len(curves)))
    for number, (name, rows) in enumerate(curves.items()):
        passes = [row["passes"] for row in rows]
        scores = [row["test_reestimated"] for row in rows]
        middle = 100 * np.array([score["mean"] for score in scores])
        spread = 100 * np.array([score["spread"] or 0.0 for score in scores])
        style, colour = _LINES[number // len(_COLOURS) % len(_LINES)], _COLOURS[number % len(_COLOURS)]
        axes.plot(passes, middle, style, color=colour, marker=_MARKERS[number % len(_MARKERS)], ms=4, label=name)
        axes.fill_between(passes, middle - spread, middle + spread, color=colour, alpha=0.12, lw=0)
    axes.set(xlabel="forward and backward passes, in epochs of ordinary training", ylabel="test accuracy, %")
    legend_below(figure, axes)
    return figure


class PlanePoints(NamedTuple):
    """Points of weight space, seen from the plane through the snapshots' mean."""

    epochs: list[int]  # when each was reached, stage 1's epochs included
    along: np.ndarray  # coordinates in the plane, (n, 2) float64
    off: np.ndarray  # distance from the plane, (n,) float64


class Surface(NamedTuple):
    """The loss on a grid of the plane; row i of (n, n) belongs to ``second[i]``, column j to ``first[j]``."""

    first: np.ndarray
    second: np.ndarray
    loss: np.ndarray


class PlaneView(NamedTuple):
    """What the plane's pictures show."""

    whole: Surface  # around both stages
    near: Surface  # around stage 2 alone
    n_images: int  # that the loss was evaluated on
    snapshots: PlanePoints  # stage 1's, in order
    stops: PlanePoints  # stage 2's start and the end of each of its epochs
    search: np.ndarray  # where each step of stage 2 led, projected on the plane, (n_steps + 1, 2); the start first


def plane_point(basis: SubspaceBasis, mean: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Coordinates (2,) of ``weights`` (M,) in the plane mean + span(P[:2]), and the distance from that plane.

    With c = P[:2] (w - mean) the distance is |w - mean - P[:2]' c|.
    """
    away = np.asarray(weights, np.float64) - mean
    plane = np.asarray(basis.components[:2], np.float64)
    along = plane @ away
    return along, float(np.linalg.norm(away - along @ plane))


def grid_around(points: np.ndarray, n: int, margin: float = 0.15) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of the columns and of the rows of an n x n grid around ``points`` (m, 2), with a margin."""
    low, high = points.min(0), points.max(0)
    wider = margin * np.maximum(high - low, 1e-9 + 0.2 * np.max(high - low))
    first, second = (np.linspace(low[axis] - wider[axis], high[axis] + wider[axis], n) for axis in (0, 1))
    return first, second


def plot_plane(surface: Surface, view: PlaneView) -> Figure:
    """Stage 1's trajectory and stage 2's path over one of the view's surfaces."""
    figure, axes = new_figure((4.8, 4.9))
    finite = surface.loss[np.isfinite(surface.loss)]
    # Levels are closer together near the lowest loss.
    levels = finite.min() + max(np.ptp(finite), 1e-9) * np.linspace(0, 1, 15) ** 2
    drawn = axes.contourf(*surface, levels, cmap="cividis", alpha=0.45)
    axes.clabel(axes.contour(*surface, levels, colors="#666666", linewidths=0.4), fontsize=6, fmt="%.2f")
    figure.colorbar(drawn, ax=axes, shrink=0.85, format="%.3f", label="loss in the plane")
    snapshots, stops = view.snapshots.along, view.stops.along
    axes.plot(*snapshots.T, "o-", color=PLAIN, lw=0.8, ms=2.5, label="stage 1's snapshots, projected")
    axes.plot(*snapshots[-1], "s", color=PLAIN, ms=7, label="the last of them")
    axes.plot(0, 0, "P", color=AVERAGE, ms=9, mec="white", label="their mean")
    axes.plot(*view.search.T, "-", color=STAGE_2, lw=1.5, label="stage 2, each step")
    axes.plot(*stops.T, "D", color=STAGE_2, mec="white", ms=6, label="its start and epochs")
    axes.set(xlim=surface.first[[0, -1]], ylim=surface.second[[0, -1]])
    axes.set(xlabel="along the first direction", ylabel="along the second direction")
    legend_below(figure, axes)
    return figure


def plot_distances(view: PlaneView) -> Figure:
    """How far each point lies off the plane and, for comparison, how far along it from the mean."""
    figure, axes = new_figure()
    for points, who, marker, colour in ((view.snapshots, "stage 1", "o", PLAIN), (view.stops, "stage 2", "D", STAGE_2)):
        look: dict[str, Any] = {"marker": marker, "color": colour, "ms": 4, "lw": 1}
        along = np.linalg.norm(points.along, axis=1)
        axes.plot(points.epochs, points.off, "-", label=f"{who}: off the plane", **look)
        axes.plot(points.epochs, along, ":", mfc="none", label=f"{who}: in the plane, from the mean", **look)
    axes.set(xlabel="epoch", ylabel="distance in weight space", ylim=(0, None))
    legend_below(figure, axes, 1)
    return figure


def _column(steps: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    return np.array([np.nan if step[key] is None else step[key] for step in steps], np.float64)


def _percent(accuracies: Iterable[float]) -> list[float]:
    return [100 * accuracy for accuracy in accuracies]
