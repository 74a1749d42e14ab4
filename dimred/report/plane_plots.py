"""Pictures of the plane: the true loss surface with both stages' paths, and the distances off the plane."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dimred.report.colours import AVERAGE, PLAIN, STAGE_2
from dimred.report.plane import PlanePoints, Surface
from dimred.report.plots import legend_below, new_figure


def plot_plane(surface: Surface, snapshots: PlanePoints, search: np.ndarray, stops: PlanePoints) -> Figure:
    """Stage 1's trajectory and stage 2's path over the loss surface of the plane.

    Args:
        surface: the loss on a grid.
        snapshots: stage 1's, in order.
        search: where each step of stage 2 led, projected on the plane, (n, 2); the start first.
        stops: stage 2's start and the end of each epoch.
    """
    figure, axes = new_figure((4.8, 4.9))
    drawn = axes.contourf(
        surface.first, surface.second, surface.loss, _levels(surface.loss), cmap="cividis", alpha=0.45
    )
    lines = axes.contour(
        surface.first, surface.second, surface.loss, _levels(surface.loss), colors="#666666", linewidths=0.4
    )
    axes.clabel(lines, fontsize=6, fmt="%.2f")
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85, format="%.3f")
    bar.set_label("loss in the plane")
    axes.plot(*snapshots.along.T, "o-", color=PLAIN, lw=0.8, ms=2.5, label="stage 1's snapshots, projected")
    axes.plot(*snapshots.along[-1], "s", color=PLAIN, ms=7, label="the last of them")
    axes.plot(0, 0, "P", color=AVERAGE, ms=9, mec="white", label="their mean")
    axes.plot(*search.T, "-", color=STAGE_2, lw=1.5, label="stage 2, each step")
    axes.plot(*stops.along.T, "D", color=STAGE_2, mec="white", ms=6, label="its start and epochs")
    axes.set_xlim(surface.first[0], surface.first[-1])
    axes.set_ylim(surface.second[0], surface.second[-1])
    axes.set_xlabel("along the first direction")
    axes.set_ylabel("along the second direction")
    legend_below(figure, axes, 2)
    return figure


def plot_distances(snapshots: PlanePoints, epochs: list[int], stops: PlanePoints, stop_epochs: list[int]) -> Figure:
    """How far each point lies off the plane, and, for comparison, how far along it from the mean."""
    figure, axes = new_figure()

    def both(x: list[int], points: PlanePoints, colour: str, who: str, marker: str) -> None:
        axes.plot(x, points.off, f"{marker}-", color=colour, ms=4, lw=1, label=f"{who}: off the plane")
        along: Any = np.linalg.norm(points.along, axis=1)
        axes.plot(
            x, along, f"{marker}:", color=colour, mfc="none", ms=4, lw=1, label=f"{who}: in the plane, from the mean"
        )

    both(epochs, snapshots, PLAIN, "stage 1", "o")
    both(stop_epochs, stops, STAGE_2, "stage 2", "D")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("epoch")
    axes.set_ylabel("distance in weight space")
    legend_below(figure, axes, 1)
    return figure


def _levels(loss: np.ndarray) -> np.ndarray:
    """Contour levels: as many below the median as above, closer near the bottom; what is not finite is left out."""
    finite = loss[np.isfinite(loss)]
    low, high = float(finite.min()), float(finite.max())
    return low + (max(high - low, 1e-9)) * np.linspace(0, 1, 15) ** 2
