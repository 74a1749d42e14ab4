"""The plane of the first two directions: what is drawn is what was measured."""

import numpy as np

from dimred.report.plane import (
    PlanePoints,
    PlaneView,
    Surface,
    grid_around,
    plane_point,
    plot_distances,
    plot_plane,
)
from dimred.subspace.basis import SubspaceBasis


def test_a_point_is_taken_apart_into_what_it_was_put_together_from() -> None:
    rng = np.random.default_rng(3)
    rows = np.linalg.qr(rng.normal(size=(50, 4)))[0].T
    basis = SubspaceBasis(rows.astype(np.float32))
    mean = rng.normal(size=50)
    along, off = plane_point(basis, mean, mean + 2 * rows[0] - 3 * rows[1] + 4 * rows[2] - 3 * rows[3])
    np.testing.assert_allclose(along, [2, -3], rtol=1e-5)
    np.testing.assert_allclose(off, 5, rtol=1e-5)


def test_the_grid_holds_every_point_also_where_they_lie_on_a_line() -> None:
    points = np.array([[0.0, 1.0], [10.0, 1.0]])
    first, second = grid_around(points, 7)
    assert (len(first), len(second)) == (7, 7)
    assert first[0] < 0
    assert first[-1] > 10
    assert second[0] < 1 < second[-1]


def view_of(surface: Surface) -> PlaneView:
    points = PlanePoints([1.0, 1.5, 2.0], np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]), np.array([1.0, 2.0, 3.0]))
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


def test_points_stand_at_the_part_of_the_epoch_in_which_they_were_taken() -> None:
    surface = Surface(np.arange(2.0), np.arange(2.0), np.zeros((2, 2)))
    off, along, *_ = plot_distances(view_of(surface)).axes[0].lines
    np.testing.assert_allclose(off.get_xydata(), [(1, 1), (1.5, 2), (2, 3)])
    np.testing.assert_allclose(along.get_ydata(), [0, 1, np.sqrt(2)])
