"""fit_basis is the exact PCA: against an SVD in float64, and Gram-Schmidt."""

import numpy as np
import pytest

from dimred.subspace import fit
from dimred.subspace.fit import fit_basis
from dimred.subspace.spectrum import TOLERANCE, deviation
from tests.helpers.planted import WALK_WIDTH as M
from tests.helpers.planted import planted, write_series
from tests.oracles.pca import gram_schmidt, principal_components, subspace_distance


def row_gram(basis):
    rows = np.asarray(basis.components, np.float64)
    return rows @ rows.T


def test_it_is_the_svd_of_the_centred_matrix_in_float64(walk):
    series, snapshots = walk
    basis = fit_basis(series, 7)
    mean, components, values = principal_components(snapshots, 7)
    assert basis.components.dtype == np.float32
    assert basis.components.shape == (7, M)
    assert subspace_distance(basis.components, components) < 1e-6
    for ours, theirs in zip(basis.components, components, strict=True):
        assert abs(ours.astype(np.float64) @ theirs) == pytest.approx(1, abs=1e-7)
    assert np.allclose(basis.singular_values, values[:7], rtol=1e-12)
    assert np.allclose(basis.explained_variance_ratio, values[:7] ** 2 / np.sum(values**2), rtol=1e-10)
    assert np.array_equal(basis.mean, mean.astype(np.float32))
    centred = snapshots - mean
    assert np.allclose(basis.gram, centred @ centred.T, rtol=0, atol=1e-12 * values[0] ** 2)
    assert deviation(row_gram(basis)) == pytest.approx(basis.deviation, abs=1e-12)
    assert basis.deviation < 1e-7


def test_a_small_variance_beside_a_large_mean_loses_nothing(tmp_path):
    values = np.array([1e-2, 5e-3, 2e-3])
    snapshots, _ = planted(8, M, values, mean_size=1.0)
    basis = fit_basis(write_series(tmp_path, snapshots), 3)
    _, components, exact = principal_components(snapshots, 3)
    assert np.allclose(basis.singular_values, exact[:3], rtol=1e-9)
    assert subspace_distance(basis.components, components) < 1e-6


def test_nearly_collinear_snapshots_are_repaired(tmp_path, monkeypatch):
    """Singular values over six orders: the first pass leaves rows tilted, which is measured and repaired.

    The mean is not zero: the eigenvectors of small eigenvalues are not quite free of it, the centred rows are.
    """
    values = np.array([1.0, 1e-2, 1e-4, 1e-5, 2e-6, 1.5e-6])
    snapshots, _ = planted(9, M, values, mean_size=0.003)
    series = write_series(tmp_path, snapshots)
    basis = fit_basis(series, 6)
    assert deviation(row_gram(basis)) <= TOLERANCE
    _, components, exact = principal_components(snapshots, 6)
    assert np.allclose(basis.singular_values, exact[:6], rtol=1e-4)
    assert subspace_distance(basis.components, components) < 1e-4
    monkeypatch.setattr(fit, "TOLERANCE", np.inf)
    assert deviation(row_gram(fit_basis(series, 6))) > TOLERANCE, "this case no longer needs the repair"


def test_raw_snapshots_are_orthonormalised_in_their_order(walk):
    series, snapshots = walk
    expected = gram_schmidt(snapshots)
    basis = fit_basis(series, kind="snapshots")
    assert basis.n_components == 12
    assert basis.kind == "snapshots"
    assert deviation(row_gram(basis)) <= TOLERANCE
    assert np.abs(basis.components - expected).max() < 1e-6
    assert np.abs(fit_basis(series, 4, kind="snapshots").components - gram_schmidt(snapshots[-4:])).max() < 1e-6
    assert basis.explained_variance_ratio.sum() == pytest.approx(1, abs=1e-6)


def test_project_and_back_project_are_the_matrix_products(walk):
    series, snapshots = walk
    basis = fit_basis(series, 5)
    rows = np.asarray(basis.components, np.float64)
    assert np.allclose(basis.project(snapshots[3]), rows @ snapshots[3], rtol=1e-12)
    coordinates = np.arange(5.0)
    assert np.allclose(basis.back_project(coordinates), rows.T @ coordinates, rtol=1e-6, atol=1e-9)
