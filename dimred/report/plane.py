"""The plane of the first two principal directions: where both stages were, and the true loss around them."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from dimred.report.plots import AVERAGE, PLAIN, STAGE_2, legend_below, new_figure
from dimred.subspace.basis import SubspaceBasis


class PlanePoints(NamedTuple):
    """Points of weight space, seen from the plane through the snapshots' mean.

    Attributes:
        epochs: when each was reached, stage 1's epochs included.
        along: coordinates in the plane, (n, 2) float64.
        off: distance from the plane, (n,) float64.
    """

    epochs: list[int]
    along: np.ndarray
    off: np.ndarray


class Surface(NamedTuple):
    """The loss on a grid of the plane.

    Attributes:
        first, second: coordinates of the grid's columns and rows, (n,) float64.
        loss: (n, n) float64; row i belongs to ``second[i]``, column j to ``first[j]``.
    """

    first: np.ndarray
    second: np.ndarray
    loss: np.ndarray


class PlaneView(NamedTuple):
    """What the plane's pictures show.

    Attributes:
        whole, near: the loss around both stages, and around stage 2 alone.
        n_images: how many images it was evaluated on.
        snapshots: stage 1's, in order.
        stops: stage 2's start and the end of each of its epochs.
        search: where each step of stage 2 led, projected on the plane, (n_steps + 1, 2); the start first.
    """

    whole: Surface
    near: Surface
    n_images: int
    snapshots: PlanePoints
    stops: PlanePoints
    search: np.ndarray


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
    grid, levels = (surface.first, surface.second, surface.loss), _levels(surface.loss)
    drawn = axes.contourf(*grid, levels, cmap="cividis", alpha=0.45)
    lines = axes.contour(*grid, levels, colors="#666666", linewidths=0.4)
    axes.clabel(lines, fontsize=6, fmt="%.2f")
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85, format="%.3f")
    bar.set_label("loss in the plane")
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
    both = ((view.snapshots, "stage 1", "o", PLAIN), (view.stops, "stage 2", "D", STAGE_2))
    for points, who, marker, colour in both:
        look: dict[str, Any] = {"marker": marker, "color": colour, "ms": 4, "lw": 1}
        along = np.linalg.norm(points.along, axis=1)
        axes.plot(points.epochs, points.off, "-", label=f"{who}: off the plane", **look)
        axes.plot(points.epochs, along, ":", mfc="none", label=f"{who}: in the plane, from the mean", **look)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="epoch", ylabel="distance in weight space")
    legend_below(figure, axes, 1)
    return figure


def _levels(loss: np.ndarray) -> np.ndarray:
    """Contour levels of the finite losses, closer together near the lowest."""
    finite = loss[np.isfinite(loss)]
    levels: np.ndarray = finite.min() + max(np.ptp(finite), 1e-9) * np.linspace(0, 1, 15) ** 2
    return levels
