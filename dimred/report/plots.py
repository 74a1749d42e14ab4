"""Draw a run's pictures; ``save_figure`` writes a figure as PNG and SVG."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dimred.averaging.choice import in_words
from dimred.io.atomic import atomic_write
from dimred.report.trend import draw_trend, mean_width
from dimred.run_files.metric import ACCURACY, Metric

# Okabe and Ito's colours can be told apart with every common kind of colour blindness; markers differ too.
PLAIN = "#000000"
STAGE_2 = "#D55E00"
AVERAGE = "#0072B2"
LIGHT = "#56B4E9"
REJECTED = "#CC79A7"
_COLOURS = (PLAIN, STAGE_2, AVERAGE, LIGHT, REJECTED, "#009E73", "#E69F00")
_LINES = ("-", "--", ":")
_MARKERS = "osd^vxp*"

# Light colour -> dark colour. An SVG follows its reader's colour scheme; a PNG is always light.
_DARK = {
    PLAIN: "#e8e8e8",
    "#ffffff": "#16191d",
    AVERAGE: "#3a93d6",
    LIGHT: "#9fd6f7",
    "#666666": "#b5b5b5",
    "#e5e5e5": "#3a4048",
}
_DARK_STYLE = "".join(
    f'[style*="{part}: {light.lower()}"]{{{part}:{dark} !important}}'
    for light, dark in _DARK.items()
    for part in ("fill", "stroke")
)

Size = tuple[float, float]
NARROW: Size = (4.8, 3.6)  # inches; letters stay readable on a telephone's screen


def new_figure(size: Size = NARROW, ratios: Sequence[float] = (1,)) -> tuple[Figure, Any]:
    """Make a figure and its axes.

    Args:
        size: width and height in inches.
        ratios: relative heights of the axes, from the top.

    Returns:
        The figure and its axes; an array of axes if ``ratios`` has more than one entry.
    """
    with mpl.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        return figure, figure.subplots(len(ratios), sharex=True, height_ratios=ratios)


def legend_below(figure: Figure, axes: Any, columns: int = 2) -> None:
    """Put the legend of ``axes`` below the picture, with its entries in ``columns`` columns."""
    entries = axes.get_legend_handles_labels()
    figure.legend(*entries, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def whole_numbers(*axes: Any) -> None:
    """Put the ticks of the given axes, such as ``axes.xaxis``, at whole numbers."""
    for axis in axes:
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))


def save_figure(figure: Figure, folder: Path, name: str) -> str:
    """Write ``name.png`` and ``name.svg``; return the SVG text, which is the same for the same figure.

    The SVG has light and dark colours, and shows the ones that its reader prefers.

    Raises:
        OSError: a file can't be written.
    """
    png = io.BytesIO()
    svg = io.StringIO()
    figure.savefig(png)
    with mpl.rc_context({"svg.hashsalt": "dimred", "svg.fonttype": "path"}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    dark = f"@media (prefers-color-scheme: dark){{svg{{fill:{_DARK[PLAIN]}}}{_DARK_STYLE}}}"
    text = svg.getvalue().replace("</style>", f"{dark}</style>", 1)
    atomic_write(folder / f"{name}.png", png.getvalue())
    atomic_write(folder / f"{name}.svg", text)
    return text


def plot_metric(
    metric: Metric,
    plain: Mapping[int, float],
    stage_2: Mapping[int, float],
    snapshot_range: tuple[int, int] | None,
    statistics: str,
) -> Figure:
    """Draw a metric over epochs: for stage 1, and for stage 2 from the epoch at which it began.

    Args:
        metric: the metric; a fraction is drawn in percent.
        plain: epoch -> value.
        stage_2: the same for stage 2, from the epoch at which it began; may be empty.
        snapshot_range: the first and the last epoch with a snapshot; None if not known.
        statistics: the kind of BatchNorm statistics behind both curves, for their labels.
    """
    figure, axes = new_figure()
    label, factor = metric.axis
    if snapshot_range:
        first, last = snapshot_range
        axes.axvspan(first - 1, last, color=LIGHT, alpha=0.12, lw=0, label="snapshots taken")  # epoch e ends at e
    for name, values, colour, width in (("stage 1", plain, PLAIN, 1), ("stage 2", stage_2, STAGE_2, 2)):
        if values:
            label_of_curve = ", ".join(filter(None, (name, statistics)))
            look = {"color": colour, "lw": width, "ms": 2 * width, "label": label_of_curve}
            axes.plot(list(values), factor * np.array(list(values.values())), "o-", **look)
    low, high = _axis(metric, plain, stage_2, snapshot_range)
    axes.set(ylim=(factor * low, factor * high), xlim=(0, max([*plain, *stage_2]) + 1))
    axes.set(xlabel="epoch", ylabel=label)
    whole_numbers(axes.xaxis)
    legend_below(figure, axes, 1)
    return figure


def epochs_beyond_axis(
    metric: Metric, plain: Mapping[int, float], stage_2: Mapping[int, float], snapshot_range: tuple[int, int] | None
) -> list[int]:
    """Return the stage 1 epochs that ``plot_metric``, given the same arguments, leaves outside its axis."""
    low, high = _axis(metric, plain, stage_2, snapshot_range)
    return [epoch for epoch, value in plain.items() if not low <= value <= high]


def _axis(
    metric: Metric, plain: Mapping[int, float], stage_2: Mapping[int, float], snapshot_range: tuple[int, int] | None
) -> tuple[float, float]:
    """Return the lowest and the highest value on a metric's axis.

    The first epochs, or a single collapse, would flatten the rest of the curve. So the axis leaves out the epochs
    before the first snapshot, and the worst tenth of the others if they are far off.
    """
    first = snapshot_range[0] if snapshot_range else 0
    late = [value for epoch, value in plain.items() if epoch >= first] or list(plain.values())
    worst_tenth = {True: (10, 100), False: (0, 90), None: (0, 100)}
    low, high = np.percentile(late, worst_tenth[metric.higher_is_better])
    low = min([low, *stage_2.values()])
    high = max([high, *stage_2.values()])
    margin = 0.1 * (high - low) + 0.002
    return low - margin, high + margin


def plot_losses(stage_1: tuple[np.ndarray, np.ndarray], stage_2: tuple[np.ndarray, np.ndarray]) -> Figure:
    """Draw the training loss over epochs: for stage 1, and for stage 2 from the epoch at which it began.

    Args:
        stage_1: epochs (n,) and losses (n,); may be empty.
        stage_2: the same; for a step within an epoch, the epoch is a fraction.
    """
    figure, axes = new_figure()
    axes.plot(*stage_1, "o-", color=PLAIN, lw=1, ms=2, label="stage 1, last step of each epoch")
    epochs, losses = stage_2
    if len(losses) and np.equal(epochs, np.round(epochs)).all():
        axes.plot(epochs, losses, "o-", color=STAGE_2, lw=1.6, ms=3, label="stage 2, last step of each epoch")
    elif len(losses):
        draw_trend(axes, epochs, losses, STAGE_2, f"stage 2, mean of {mean_width(len(losses))} steps")
    # The first epochs would flatten the rest of the curve.
    late = np.concatenate([stage_1[1][len(stage_1[1]) // 4 :], losses])
    if np.isfinite(late).any():
        low = np.nanmin(late)
        high = np.nanmax(late)
        axes.set(ylim=(low - 0.05 * (high - low) - 1e-9, high + 0.1 * (high - low) + 1e-9))
    axes.set(xlabel="epoch", ylabel="training loss of a batch")
    whole_numbers(axes.xaxis)
    legend_below(figure, axes, 1)
    return figure


def plot_spectrum(fractions: np.ndarray) -> Figure:
    """Draw the fraction of the snapshots' variance along each direction, and the running sum of these fractions.

    Args:
        fractions: (k,), between 0 and 1, in the order of the principal directions.
    """
    figure, axes = new_figure()
    numbers = np.arange(1, len(fractions) + 1)
    axes.bar(numbers, 100 * fractions, color=AVERAGE, label="each direction")
    axes.plot(numbers, 100 * np.cumsum(fractions), "o-", color=STAGE_2, ms=3, lw=1.5, label="running sum")
    axes.set(xlabel="principal direction", ylabel="fraction of the variance, %", ylim=(0, 102))
    whole_numbers(axes.xaxis)
    legend_below(figure, axes)
    return figure


class PlanePoints(NamedTuple):
    """Points of weight space, relative to a plane."""

    along: np.ndarray  # coordinates in the plane, (n, 2) float64
    off: np.ndarray  # distance from the plane, (n,) float64


class PlaneView(NamedTuple):
    """The loss in the plane through three points, and where other points lie.

    The plane's origin is stage 2's start; its first direction leads to stage 2's last weights.
    """

    first: np.ndarray  # coordinates of the grid along the first direction, (n,)
    second: np.ndarray  # along the second direction, (n,)
    loss: np.ndarray  # (n, n); row i belongs to second[i], column j to first[j]
    n_images: int  # samples that the loss was evaluated on
    batch_norm: bool  # whether the network has BatchNorm
    third: str  # the third point's name, as in a result
    corners: np.ndarray  # stage 2's start and last weights, and the third point, (3, 2)
    snapshots: PlanePoints  # stage 1's, in order
    epochs: PlanePoints  # the end of each stage 2 epoch but the last, in order; may be empty


def plot_plane(view: PlaneView) -> Figure:
    """Draw the loss, as the difference from its lowest value, and both stages; points off the plane are hollow."""
    figure, axes = new_figure((4.8, 5.2))
    loss = np.where(np.isfinite(view.loss), view.loss, np.nan)
    above = loss - np.nanmin(loss)
    # Levels are closer together near the lowest loss.
    levels = max(float(np.nanmax(above)), 1e-9) * np.linspace(0, 1, 12) ** 2
    filling = axes.contourf(view.first, view.second, above, levels, cmap="cividis", alpha=0.45)
    lines = axes.contour(view.first, view.second, above, levels, colors="#666666", linewidths=0.4)
    axes.clabel(lines, fontsize=7, fmt="%.2g")
    label = f"loss above the lowest here, {np.nanmin(loss):.4g}"
    figure.colorbar(filling, ax=axes, shrink=0.85, format="%.2g", label=label)
    start, final, _ = view.corners
    axes.plot(*np.array([start, *view.epochs.along, final]).T, "-", color=STAGE_2, lw=1.5)
    axes.plot(*view.snapshots.along.T, "-", color=PLAIN, lw=0.8)
    for points, marker, size, colour, name in (
        (view.snapshots, "o", 3, PLAIN, "snapshots"),
        (view.epochs, "D", 6, STAGE_2, "epochs of stage 2"),
    ):
        if not len(points.off):
            continue
        label = f"{name}, {distances(points.off)} off the plane"
        farthest = points.off.argmax()
        axes.plot(*points.along.T, marker, color=colour, ms=size, mfc="none", label=label)
        box = {"boxstyle": "round,pad=0.1", "fc": "#ffffff", "ec": "none", "alpha": 0.8}
        below = {"xytext": (4, -13), "textcoords": "offset points", "fontsize": 9, "zorder": 5, "bbox": box}
        axes.annotate(f"{points.off[farthest]:.2g} off", points.along[farthest], **below)  # above later points
    for point, marker, colour, name in zip(
        view.corners, "sDP", (PLAIN, STAGE_2, AVERAGE), ("start", "final", view.third), strict=True
    ):
        axes.plot(*point, marker, color=colour, ms=9, mec="white", ls="none", label=in_words(name))
    axes.set(xlim=view.first[[0, -1]], ylim=view.second[[0, -1]])
    axes.set(xlabel="distance towards stage 2's last weights", ylabel="distance across it")
    legend_below(figure, axes, 1)
    return figure


def distances(values: np.ndarray) -> str:
    """Format the range that distances span, such as ``0.52 to 3.1``, or ``0.52`` if they look equal."""
    return " to ".join(dict.fromkeys(f"{value:.2g}" for value in (values.min(), values.max())))


def plot_curve(
    curves: Mapping[str, Sequence[Mapping[str, Any]]], metric: Metric = ACCURACY, size: Size = NARROW
) -> Figure:
    """Draw the test metric over passes, one line per method, with the spread over seeds as a band.

    Args:
        curves: name -> points in the order of ``passes``; each one's ``test_reestimated`` has ``mean`` and ``spread``.
        metric: the metric.
        size: size in inches, without the legend.
    """
    label, factor = metric.axis
    figure, axes = new_figure((size[0], size[1] + 0.2 * len(curves)))
    for number, (name, rows) in enumerate(curves.items()):
        passes = [row["passes"] for row in rows]
        scores = [row["test_reestimated"] for row in rows]
        middle = factor * np.array([score["mean"] for score in scores])
        spread = factor * np.array([score["spread"] or 0.0 for score in scores])
        style = _LINES[number // len(_COLOURS) % len(_LINES)]
        colour = _COLOURS[number % len(_COLOURS)]
        axes.plot(passes, middle, style, color=colour, marker=_MARKERS[number % len(_MARKERS)], ms=4, label=name)
        axes.fill_between(passes, middle - spread, middle + spread, color=colour, alpha=0.12, lw=0)
    axes.set(xlabel="passes, in epochs of ordinary training", ylabel=f"test {label}")
    legend_below(figure, axes, 1 if size == NARROW else 2)
    return figure
