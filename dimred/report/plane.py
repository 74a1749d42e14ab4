"""Draw both stages and the loss in the plane of the first two principal directions."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from dimred.report.plots import AVERAGE, PLAIN, STAGE_2, legend_below, new_figure, whole_numbers
from dimred.subspace.basis import SubspaceBasis

_MARGIN = 0.15  # of a grid, as a share of its points' spread


class PlanePoints(NamedTuple):
    """Points of weight space, seen from the plane through the snapshots' mean.

    Attributes:
        epochs: when each point was reached, counted from the beginning of stage 1.
        along: coordinates in the plane, (n, 2) float64.
        off: distance from the plane, (n,) float64.
    """

    epochs: list[float]
    along: np.ndarray
    off: np.ndarray


class Surface(NamedTuple):
    """The loss on a grid of the plane.

    Attributes:
        first: coordinates along the first direction, (n,).
        second: along the second one, (n,).
        loss: (n, n); row i belongs to ``second[i]``, column j to ``first[j]``.
    """

    first: np.ndarray
    second: np.ndarray
    loss: np.ndarray


class PlaneView(NamedTuple):
    """The content of the plane's pictures.

    Attributes:
        whole: loss around both stages.
        near: loss around stage 2 alone.
        n_images: how many samples the loss was evaluated on.
        batch_norm: whether the network has BatchNorm.
        snapshots: stage 1's, in order.
        stops: stage 2's start and the end of each of its epochs.
        search: stage 2's start and the place after each step, projected on the plane, (n_steps + 1, 2).
    """

    whole: Surface
    near: Surface
    n_images: int
    batch_norm: bool
    snapshots: PlanePoints
    stops: PlanePoints
    search: np.ndarray


def plane_point(basis: SubspaceBasis, mean: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the coordinates (2,) of weights (M,) in the plane mean + span(P[:2]), and the distance from that plane.

    With c = P[:2] (w - mean) the distance is |w - mean - P[:2]' c|.
    """
    away = np.asarray(weights, np.float64) - mean
    plane = np.asarray(basis.components[:2], np.float64)
    along = plane @ away
    return along, float(np.linalg.norm(away - along @ plane))


def grid_around(points: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the column and the row coordinates, (n,) each, of a grid around points (m, 2), with a margin."""
    low, high = points.min(0), points.max(0)
    wider = _MARGIN * np.maximum(high - low, 1e-9 + 0.2 * np.max(high - low))
    first, second = (np.linspace(low[axis] - wider[axis], high[axis] + wider[axis], n) for axis in (0, 1))
    return first, second


def plot_plane(surface: Surface, view: PlaneView) -> Figure:
    """Draw stage 1's trajectory and stage 2's path over a surface; losses are differences to its lowest one."""
    figure, axes = new_figure((4.8, 4.9))
    loss = np.where(np.isfinite(surface.loss), surface.loss, np.nan)
    lowest, highest = float(np.nanmin(loss)), max(float(np.nanmax(loss) - np.nanmin(loss)), 1e-9)
    power = 0 if highest >= 0.1 else 3 * int(np.floor(np.log10(highest) / 3))  # of ten; short numbers that differ
    unit = "" if power == 0 else f", in units of $10^{{{power}}}$"
    # Levels are closer together near the lowest loss.
    levels = highest / 10**power * np.linspace(0, 1, 12) ** 2
    grid = (surface.first, surface.second, (loss - lowest) / 10**power)
    drawn = axes.contourf(*grid, levels, cmap="cividis", alpha=0.45)
    axes.clabel(axes.contour(*grid, levels, colors="#666666", linewidths=0.4), fontsize=7, fmt="%.3g")
    figure.colorbar(drawn, ax=axes, shrink=0.85, format="%.3g", label=f"loss above the lowest here, {lowest:.4g}{unit}")
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
    """Draw each point's distance from the plane and, for comparison, that of its projection from the mean."""
    figure, axes = new_figure()
    for points, who, marker, colour in ((view.snapshots, "stage 1", "o", PLAIN), (view.stops, "stage 2", "D", STAGE_2)):
        look: dict[str, Any] = {"marker": marker, "color": colour, "ms": 4, "lw": 1}
        along = np.linalg.norm(points.along, axis=1)
        axes.plot(points.epochs, points.off, "-", label=f"{who}: off the plane", **look)
        axes.plot(points.epochs, along, ":", mfc="none", label=f"{who}: in the plane, from the mean", **look)
    axes.set(xlabel="epoch", ylabel="distance in weight space", ylim=(0, None))
    whole_numbers(axes.xaxis)
    legend_below(figure, axes, 1)
    return figure
