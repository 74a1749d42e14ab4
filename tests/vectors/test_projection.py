"""The passes over the basis: by NumPy in host memory, and by graphs; both beside float64."""

import numpy as np
import pytest
from mindspore import Tensor

from dimred.distributed.ranks import ALONE
from dimred.vectors.base import make_projection
from dimred.vectors.graph import GraphProjection
from dimred.vectors.host import HostProjection
from tests.helpers.networks import orthonormal_rows


@pytest.mark.parametrize("m", [50, 600_001])
@pytest.mark.parametrize("k", [1, 5, 32])
@pytest.mark.parametrize("kind", [HostProjection, lambda rows: GraphProjection(rows, ALONE)], ids=["host", "graph"])
def test_both_projections_are_the_matrix_products(kind, m, k):
    rng = np.random.default_rng(m)
    rows = (rng.standard_normal((k, m)) / np.sqrt(m)).astype(np.float32)
    vector = rng.standard_normal(m).astype(np.float32)
    projection = kind(rows)
    down = projection.project(Tensor(vector))
    assert down.shape == (k,)
    assert down.dtype == np.float64
    np.testing.assert_allclose(down, rows.astype(np.float64) @ vector, rtol=0, atol=2e-5)
    coordinates = rng.standard_normal((3, k))
    for n in (1, 2, 3):
        ups = projection.back_project(*coordinates[:n])
        assert len(ups) == n
        for up, z in zip(ups, coordinates, strict=False):
            np.testing.assert_allclose(up.asnumpy(), z @ rows.astype(np.float64), rtol=0, atol=1e-5 / np.sqrt(m))


def test_projecting_a_back_projection_returns_the_coordinates():
    projection = make_projection(orthonormal_rows(6, 3000), ALONE)
    z = np.random.default_rng(3).standard_normal(6)
    (up,) = projection.back_project(z)
    np.testing.assert_allclose(projection.project(up), z, rtol=0, atol=4e-6)
