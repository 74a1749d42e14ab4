"""Pictures of a run, each a function that returns a figure; ``save_figure`` writes it as PNG and SVG."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dimred.files.atomic import atomic_write
from dimred.files.metrics_file import ACCURACY, metric_axis

# Okabe and Ito's colours stay apart with every common kind of colour blindness; markers differ too.
PLAIN, STAGE_2, AVERAGE, LIGHT, REJECTED = "#000000", "#D55E00", "#0072B2", "#56B4E9", "#CC79A7"
_COLOURS = (PLAIN, STAGE_2, AVERAGE, LIGHT, REJECTED, "#009E73", "#E69F00")
_LINES, _MARKERS = ("-", "--", ":"), "osd^vxp*"

# Light -> dark, in SVG text. A picture follows its reader's colour scheme; the PNG is light.
_DARK = {PLAIN: "#e8e8e8", "#ffffff": "#16191d", AVERAGE: "#3a93d6", LIGHT: "#9fd6f7", "#666666": "#b5b5b5",
         "#e5e5e5": "#3a4048"}  # fmt: skip
_DARK_STYLE = "".join(
    f'[style*="{part}: {light.lower()}"]{{{part}:{dark} !important}}'
    for light, dark in _DARK.items()
    for part in ("fill", "stroke")
)

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


def whole_numbers(*axes: Any) -> None:
    """Put the ticks along these axes (``axes.xaxis``) at whole numbers: of epochs, steps, directions."""
    for axis in axes:
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))


def save_figure(figure: Figure, folder: Path, name: str) -> str:
    """Write ``name.png`` and ``name.svg``; return the SVG text, which is the same for the same figure.

    The SVG has light and dark colours, whichever its reader prefers.
    """
    png, svg = io.BytesIO(), io.StringIO()
    figure.savefig(png)
    with mpl.rc_context({"svg.hashsalt": "dimred", "svg.fonttype": "path"}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    dark = f"@media (prefers-color-scheme: dark){{svg{{fill:{_DARK[PLAIN]}}}{_DARK_STYLE}}}"
    text = svg.getvalue().replace("</style>", f"{dark}</style>", 1)
    atomic_write(folder / f"{name}.png", png.getvalue())
    atomic_write(folder / f"{name}.svg", text)
    return text


def plot_metric(
    metric: str,
    plain: Mapping[int, float],
    stage_2: Mapping[int, float],
    snapshots_taken: tuple[int, int] | None,
    reestimated: Mapping[int, float] | None = None,
) -> Figure:
    """A metric over epochs: plain training, and stage 2 from its branching point.

    Args:
        metric: its name; an accuracy is a fraction, and is drawn in percent.
        plain: epoch -> value.
        stage_2: the same, the branching point included; empty where there is none.
        snapshots_taken: the first and the last epoch that gave a snapshot; None where that is not known.
        reestimated: epoch -> value with re-estimated BatchNorm statistics, of single points.
    """
    figure, axes = new_figure()
    label, factor = metric_axis(metric)
    if snapshots_taken:
        axes.axvspan(*snapshots_taken, color=LIGHT, alpha=0.12, lw=0, label="snapshots taken")
    looks: tuple[tuple[str, Mapping[int, float] | None, dict[str, Any]], ...] = (
        ("plain training", plain, {"color": PLAIN, "lw": 1, "marker": "o", "ms": 2}),
        ("stage 2", stage_2, {"color": STAGE_2, "lw": 2, "marker": "o", "ms": 4}),
        ("BatchNorm re-estimated", reestimated, {"color": AVERAGE, "lw": 0, "marker": "P", "ms": 8}),
    )
    for name, values, look in looks:
        if values:
            axes.plot(list(values), factor * np.array(list(values.values())), label=name, **look)
    # Single collapses would flatten the part that matters, so the axis leaves out a tenth of late training.
    first = snapshots_taken[0] if snapshots_taken else 0
    late = [value for epoch, value in plain.items() if epoch >= first] or list(plain.values())
    low, high = np.percentile(late, (10, 100) if metric == ACCURACY else (0, 90))
    others = [*stage_2.values(), *(reestimated or {}).values()]
    low, high = min([low, *others]), max([high, *others])
    margin = 0.1 * (high - low) + 0.002
    axes.set(ylim=(factor * (low - margin), factor * (high + margin)), xlim=(0, max([*plain, *stage_2]) + 1))
    axes.set(xlabel="epoch", ylabel=label)
    whole_numbers(axes.xaxis)
    legend_below(figure, axes)
    return figure


def plot_loss(numbers: Sequence[int], losses: Sequence[float], unit: str = "epoch") -> Figure:
    """The training loss over steps, or over epochs, of which it is that of the last step."""
    figure, axes = new_figure()
    axes.plot(numbers, losses, color=PLAIN, lw=1)
    axes.set(xlabel=unit, ylabel="training loss, last step" if unit == "epoch" else "training loss")
    whole_numbers(axes.xaxis)
    return figure


def plot_spectrum(shares: np.ndarray) -> Figure:
    """Share of the snapshots' variance along each direction, (k,) fractions of 1, and their running sum."""
    figure, axes = new_figure()
    numbers = np.arange(1, len(shares) + 1)
    axes.bar(numbers, 100 * shares, color=AVERAGE, label="each direction")
    axes.plot(numbers, 100 * np.cumsum(shares), "o-", color=STAGE_2, ms=3, lw=1.5, label="all up to it")
    axes.set(xlabel="principal direction", ylabel="share of the variance, %", ylim=(0, 102))
    whole_numbers(axes.xaxis)
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
    whole_numbers(lower.xaxis, lower.yaxis)
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
    whole_numbers(axes.xaxis)
    return figure


def plot_comparison(rows: Sequence[tuple[str, float, float | None]], metric: str = ACCURACY) -> Figure:
    """The metric of each method: (name, mean, spread over the seeds or None) each, drawn from above."""
    label, factor = metric_axis(metric)
    figure, axes = new_figure((4.8, 1.2 + 0.3 * len(rows)))
    for place, (name, mean, spread) in enumerate(reversed(rows)):
        colour = STAGE_2 if name.startswith("stage 2") else PLAIN
        bar = None if spread is None else factor * spread
        axes.errorbar(factor * mean, place, xerr=bar, fmt="o", color=colour, capsize=3)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in reversed(rows)], fontsize=8)
    axes.set(xlabel=f"test {label}", axisbelow=True)
    axes.grid(axis="x", color="#e5e5e5")
    return figure


def plot_curve(curves: Mapping[str, Sequence[Mapping[str, Any]]], size: Size = WIDE, metric: str = ACCURACY) -> Figure:
    """The metric on test over all passes, one line a method, the spread over the seeds as a band.

    Args:
        curves: name -> rows of ``dimred.report.comparison``, by rising passes.
        size: without the legend, which makes it higher.
        metric: its name.
    """
    label, factor = metric_axis(metric)
    columns = 2 if size == WIDE else 1
    figure, axes = new_figure((size[0], size[1] + 0.2 * len(curves)))
    for number, (name, rows) in enumerate(curves.items()):
        passes = [row["passes"] for row in rows]
        scores = [row["test_reestimated"] for row in rows]
        middle = factor * np.array([score["mean"] for score in scores])
        spread = factor * np.array([score["spread"] or 0.0 for score in scores])
        style, colour = _LINES[number // len(_COLOURS) % len(_LINES)], _COLOURS[number % len(_COLOURS)]
        axes.plot(passes, middle, style, color=colour, marker=_MARKERS[number % len(_MARKERS)], ms=4, label=name)
        axes.fill_between(passes, middle - spread, middle + spread, color=colour, alpha=0.12, lw=0)
    axes.set(xlabel="passes, in epochs of ordinary training", ylabel=f"test {label}")
    legend_below(figure, axes, columns)
    return figure


def _column(steps: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    return np.array([np.nan if step[key] is None else step[key] for step in steps], np.float64)
