"""fit_basis gives the exact PCA, as an SVD in float64 and Gram-Schmidt do, whatever the files' order and kind."""

import time

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.layout import WeightLayout, vector_digest
from dimred.checkpoints.series import CheckpointSeries
from dimred.checkpoints.stored_tensor import write_exactly
from dimred.errors import CheckpointError, ConfigError, SeriesError
from dimred.subspace import fit, gram_and_rows
from dimred.subspace.basis import load_basis
from dimred.subspace.fit import fit_basis
from dimred.subspace.spectrum import TOLERANCE, deviation, effective_rank, principal_directions
from tests.helpers.planted import WALK_WIDTH as M
from tests.helpers.planted import as_weights, planted, random_walk, write_series
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
    deviations = snapshots - mean
    assert np.allclose(basis.gram, deviations @ deviations.T, rtol=0, atol=1e-12 * values[0] ** 2)
    assert deviation(row_gram(basis)) == pytest.approx(basis.deviation, abs=1e-12)
    assert basis.deviation < 1e-7


def test_a_slow_disk_gets_the_same_basis(walk, tmp_path, monkeypatch):
    """A block is written while the next one is computed, in another buffer."""
    series, _ = walk
    fit_basis(series, 3, out=tmp_path / "fast.npy")

    def write_slowly(*arguments):
        time.sleep(0.1)
        write_exactly(*arguments)

    monkeypatch.setattr(gram_and_rows, "write_exactly", write_slowly)
    fit_basis(series, 3, out=tmp_path / "slow.npy")
    assert (tmp_path / "slow.npy").read_bytes() == (tmp_path / "fast.npy").read_bytes()


def test_a_small_variance_beside_a_large_mean_loses_nothing(tmp_path):
    values = np.array([1e-2, 5e-3, 2e-3])
    snapshots, _ = planted(8, M, values, mean_size=1.0)
    basis = fit_basis(write_series(tmp_path, snapshots), 3)
    _, components, exact = principal_components(snapshots, 3)
    assert np.allclose(basis.singular_values, exact[:3], rtol=1e-9)
    assert subspace_distance(basis.components, components) < 1e-6


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
@pytest.mark.parametrize(("offset", "size"), [(1e6, 1e-2), (-3e7, 1.0), (1.0, 1e-9)])
def test_float64_snapshots_are_centred_before_they_are_rounded(tmp_path, suffix, offset, size):
    """Their differences are below what float32 resolves beside such a mean."""
    rng = np.random.default_rng(5)
    snapshots = offset + size * np.cumsum(rng.standard_normal((9, 70_000)), axis=0)
    for number, vector in enumerate(snapshots):
        write_checkpoint(tmp_path / f"n-{number}_1{suffix}", as_weights(vector))
    layout = WeightLayout.from_weights(as_weights(snapshots[0]))
    basis = fit_basis(tmp_path, 5, layout=layout)
    _, components, values = principal_components(snapshots, 5)
    resolution = np.finfo(float).eps * abs(offset) / size  # of the snapshots' own float64
    assert np.allclose(basis.singular_values, values[:5], rtol=1e-9 + resolution)
    assert subspace_distance(basis.components, components) < 1e-6 + 10 * resolution
    assert [source.digest for source in basis.snapshots] == [vector_digest(vector) for vector in snapshots]


def test_float64_beside_float32_and_beyond_its_range(tmp_path):
    snapshots = random_walk(4, 300).astype(np.float64)
    for number, vector in enumerate(snapshots):
        weights = as_weights(vector)
        write_checkpoint(tmp_path / f"n-{number}_1.ckpt", weights | {"fc": weights["fc"].astype(np.float32)})
    _, components, _ = principal_components(snapshots, 2)
    assert subspace_distance(fit_basis(tmp_path, 2).components, components) < 1e-6
    weights = as_weights(snapshots[1])
    weights["bn.gamma"][3] = 1e39
    write_checkpoint(tmp_path / "n-1_1.ckpt", weights)
    with pytest.raises(CheckpointError, match=r"n-1_1\.ckpt has a number that is not finite .*'bn\.gamma' \(entry 3\)"):
        fit_basis(tmp_path, 2)


def test_nearly_collinear_snapshots_are_repaired(tmp_path, monkeypatch):
    """The singular values span six orders, so the first pass tilts the rows, which is measured and repaired.

    The mean is not zero, because eigenvectors of small eigenvalues are not quite free of it, and centred rows are.
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
    answer = gram_schmidt(snapshots)
    basis = fit_basis(series, kind="snapshots")
    assert basis.n_components == 12
    assert basis.kind == "snapshots"
    assert deviation(row_gram(basis)) <= TOLERANCE
    assert np.abs(basis.components - answer).max() < 1e-6
    assert np.abs(fit_basis(series, 4, kind="snapshots").components - gram_schmidt(snapshots[-4:])).max() < 1e-6
    assert basis.explained_variance_ratio.sum() == pytest.approx(1, abs=1e-6)


def test_project_and_back_project_are_the_matrix_products(walk):
    series, snapshots = walk
    basis = fit_basis(series, 5)
    rows = np.asarray(basis.components, np.float64)
    assert np.allclose(basis.project(snapshots[3]), rows @ snapshots[3], rtol=1e-12)
    coordinates = np.arange(5.0)
    assert np.allclose(basis.back_project(coordinates), rows.T @ coordinates, rtol=1e-6, atol=1e-9)


def test_the_order_and_the_kind_of_files_make_no_difference(walk, tmp_path):
    series, snapshots = walk
    for number in np.random.default_rng(0).permutation(12):
        write_checkpoint(tmp_path / f"x-{number}_1.safetensors", as_weights(snapshots[number]))
    layout = series.layout
    other = fit_basis(CheckpointSeries.open(tmp_path), 5, layout=layout)
    assert np.array_equal(other.components, fit_basis(series, 5).components)


def test_the_networks_order_decides_not_the_manifests(walk):
    series, snapshots = walk
    layout = WeightLayout(series.layout.names[::-1], series.layout.shapes[::-1])
    basis = fit_basis(series, 3, layout=layout)
    assert basis.layout == layout
    tensors = basis.layout.unflatten(basis.mean)
    straight = series.layout.unflatten(snapshots.astype(np.float64).mean(axis=0).astype(np.float32))
    assert all(np.array_equal(tensors[name], straight[name]) for name in straight)


def test_boost_reads_the_file(walk, tmp_path):
    base = pytest.importorskip("mindspore.boost.base")
    series, _ = walk
    fit_basis(series, 5, out=tmp_path / "pca_mat.npy")
    local = base._get_local_pca_mat_path(str(series.directory), str(tmp_path / "pca_mat.npy"), 5, 1, None)
    assert np.array_equal(base._load_local_pca_mat(local, 1), load_basis(tmp_path / "pca_mat.npy").components)


def test_a_basis_that_exists_is_replaced_only_if_that_is_asked_for(walk, tmp_path):
    series, _ = walk
    out = tmp_path / "pca_mat.npy"
    fit_basis(series, 3, out=out)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for n_components in (2, 3):
        with pytest.raises(ConfigError, match="exists already; give another name, or overwrite=True to replace it"):
            fit_basis(series, n_components, out=out)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert fit_basis(series, 2, out=out, overwrite=True).n_components == len(load_basis(out).components) == 2


def centred_gram(snapshots):
    deviations = snapshots.astype(np.float64) - snapshots.astype(np.float64).mean(axis=0)
    return deviations @ deviations.T


def test_signs_do_not_depend_on_the_eigensolvers():
    snapshots = random_walk(9, 60).astype(np.float64)
    gram = centred_gram(snapshots)
    answer = principal_directions(gram, 5)
    order = np.random.default_rng(0).permutation(9)
    for _ in range(5):  # other roundings give other signs inside the solver
        noisy = gram * (1 + 1e-15 * np.random.default_rng(_).standard_normal(gram.shape))
        assert np.allclose(principal_directions((noisy + noisy.T) / 2, 5), answer, atol=1e-9)
    rows = principal_directions(gram[np.ix_(order, order)], 5)
    assert np.allclose(np.abs(rows), np.abs(answer[:, order]), atol=1e-10)
    assert np.all(answer.max(axis=1) > np.abs(answer).max(axis=1) / 1.01)


def test_equal_scores_of_opposite_sign_do_not_make_the_sign_a_matter_of_rounding():
    scores = np.array([[1.0], [0.2], [-0.2], [-1.0]])
    for tilt in (1e-13, -1e-13):
        bent = scores + tilt * np.array([[0.0], [0.0], [1.0], [-1.0]])
        assert principal_directions(bent @ bent.T, 1)[0, 0] > 0


def test_n_snapshots_span_n_minus_1_directions_and_no_more():
    snapshots = random_walk(5, 60)
    _, components, _ = principal_components(snapshots, 4)
    coefficients = principal_directions(centred_gram(snapshots), 4)
    rows = coefficients @ (snapshots - snapshots.astype(np.float64).mean(axis=0))
    assert subspace_distance(rows, components) < 1e-6
    with pytest.raises(SeriesError, match="n_components is 5, but the 5 snapshots span only 4 directions"):
        principal_directions(np.eye(5), 5)  # as if rounding had added one


def test_snapshots_without_any_difference_span_nothing():
    assert effective_rank(np.zeros(3)) == 0


def test_noise_of_float32_rounding_is_not_taken_for_a_direction():
    snapshots, _ = planted(12, 2000, np.array([10.0, 5.0]), mean_size=1.0)
    with pytest.raises(SeriesError, match="span only"):
        principal_directions(centred_gram(snapshots * np.float32(1)), 11)
