"""The plane of the first two directions: what is drawn is what was measured."""

import numpy as np

from dimred.report.plots import PlanePoints, PlaneView, Surface, plot_plane


def view_of(surface: Surface) -> PlaneView:
    points = PlanePoints(np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]), np.array([1.0, 2.0, 3.0]))
    return PlaneView(surface, surface, 10, True, points, points, points.along)


def test_losses_are_differences_in_a_unit_in_which_they_differ() -> None:
    sides = np.linspace(-1, 1, 5)
    for height, unit in ((2.0, ""), (0.002, "units of $10^{-3}$")):
        loss = 1.875 + height * (sides**2 + sides[:, None] ** 2) / 2
        loss[0, 0] = np.inf
        surface = Surface(sides, sides, loss)
        axes, colours = plot_plane(surface, view_of(surface)).axes
        label = colours.get_ylabel()
        assert label.startswith("loss above the lowest here, 1.875")
        assert unit in label
        levels = np.unique([text.get_text() for text in axes.texts])
        assert len(levels) > 3
        assert all(0 <= float(level) <= 2 for level in levels)
