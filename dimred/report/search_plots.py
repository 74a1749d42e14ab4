"""Draw a search's pictures: each step's gain, the distance it moved, and its position in the subspace."""

import numpy as np
from matplotlib.figure import Figure

from dimred.report.plots import AVERAGE, LIGHT, PLAIN, REJECTED, STAGE_2, legend_below, new_figure, whole_numbers
from dimred.report.search_steps import FAILURES, SearchSteps
from dimred.report.trend import MOST_POINTS, draw_trend, places_to_draw

_FAILURE_MARKS = (("x", PLAIN), ("^", REJECTED))  # marker and colour for each of ``FAILURES``
_FARTHEST = (STAGE_2, AVERAGE, "#009E73", REJECTED)  # colours for the directions that are named
_STEP = "step of stage 2"


def plot_gains(steps: SearchSteps) -> Figure:
    """Draw each step's gain, accepted t and number of trials; failed steps are marked at t = 0."""
    figure, (upper, middle, lower) = new_figure((4.8, 5.6), ratios=(1.6, 1.2, 1))
    numbers = steps["step"]
    sizes = steps["step_size"]
    draw_trend(upper, numbers, steps.gains, STAGE_2)
    draw_trend(middle, numbers, sizes, STAGE_2)
    draw_trend(lower, numbers, steps["n_trials"], AVERAGE)
    for (failure, label), (marker, colour) in zip(FAILURES.items(), _FAILURE_MARKS, strict=True):
        is_failure = steps[failure] > 0
        if 0 < is_failure.sum() <= MOST_POINTS:
            middle.plot(numbers[is_failure], 0 * numbers[is_failure], marker, color=colour, ms=4, label=label)
    upper.axhline(0, color="#666666", lw=0.6)
    upper.set(ylabel="gain, f(w) - f(w + t d)")
    middle.set(ylabel="accepted t", ylim=(-0.06 * np.fmax.reduce(sizes, initial=1e-9), None))
    lower.set(xlabel=_STEP, ylabel="trials", ylim=(0, None))
    whole_numbers(lower.xaxis, lower.yaxis)
    if middle.get_legend_handles_labels()[1]:
        legend_below(figure, middle, 1)
    return figure


def plot_movement(steps: SearchSteps) -> Figure:
    """Draw how far each step moves inside and outside the subspace, and how far all steps so far have moved."""
    figure, (upper, lower) = new_figure((4.8, 4.8), ratios=(1, 1.2))
    numbers = steps["step"]
    places = places_to_draw(len(steps))
    away = np.linalg.norm(steps.coordinates[1:], axis=1)
    lines = [(steps.points[1:], away, "--", STAGE_2, "distance from the start, inside")]
    for key, colour, label in (("moved_inside", STAGE_2, "inside"), ("moved_outside", AVERAGE, "outside")):
        distances = steps[key]
        draw_trend(upper, numbers, _positive(distances), colour)
        path = np.nancumsum(distances)
        lines.append((numbers[places], path[places], "-", colour, f"path {label} the subspace"))
    for at, values, style, colour, label in lines:
        if (values > 0).any():  # false for the path outside if alpha is 0
            lower.plot(at, _positive(values), style, color=colour, lw=1.6, label=label)
    for axes in (upper, lower):
        if any(np.isfinite(line.get_ydata()).any() for line in axes.lines):
            axes.set(yscale="log")
    upper.set(ylabel="moved in a step")
    lower.set(xlabel=_STEP, ylabel="moved so far")
    whole_numbers(lower.xaxis)
    legend_below(figure, lower, 1)
    return figure


def _positive(values: np.ndarray) -> np.ndarray:
    """Return the values, with NaN for those that a logarithmic axis can't show."""
    return np.where(values > 0, values, np.nan)


def plot_coordinates(steps: SearchSteps) -> Figure:
    """Draw how far the search has moved along each direction, and name the directions along which it ends farthest."""
    figure, axes = new_figure()
    farthest = np.argsort(-np.abs(steps.coordinates[-1]), kind="stable")[: len(_FARTHEST)]
    others = np.delete(steps.coordinates, farthest, axis=1)
    for number, line in enumerate(others.T):
        axes.plot(steps.points, line, color=LIGHT, lw=0.6, label=f"the other {others.shape[1]}" if number == 0 else "")
    for direction, colour in zip(farthest, _FARTHEST, strict=False):
        axes.plot(
            steps.points, steps.coordinates[:, direction], color=colour, lw=1.5, label=f"direction {direction + 1}"
        )
    axes.axhline(0, color="#666666", lw=0.6)
    axes.set(xlabel=_STEP, ylabel="moved along the direction")
    whole_numbers(axes.xaxis)
    legend_below(figure, axes, 3)
    return figure


def plot_captured(steps: SearchSteps) -> Figure:
    """Draw the percentage of the gradient's squared length that lies inside the subspace, for each step."""
    figure, axes = new_figure()
    draw_trend(axes, steps["step"], 100 * steps["captured_fraction"], STAGE_2)
    axes.set(xlabel=_STEP, ylabel="gradient inside, %", ylim=(0, None))
    whole_numbers(axes.xaxis)
    return figure
