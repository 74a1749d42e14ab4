"""Coordinates in the plane and distances off it, on weights put together from known parts."""

import numpy as np

from dimred.report.plane import grid_around, plane_point
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
