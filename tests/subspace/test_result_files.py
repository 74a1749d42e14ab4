"""The two files of a basis: what is in them, what they do not depend on, and when they are replaced."""

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.subspace.basis import load_basis
from dimred.subspace.fit import fit_basis
from tests.helpers.planted import as_weights


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
    turned = basis.layout.unflatten(basis.mean)
    straight = series.layout.unflatten(snapshots.astype(np.float64).mean(axis=0).astype(np.float32))
    assert all(np.array_equal(turned[name], straight[name]) for name in straight)


def test_boost_reads_the_file(walk, tmp_path):
    base = pytest.importorskip("mindspore.boost.base")
    series, _ = walk
    fit_basis(series, 5, out=tmp_path / "pca_mat.npy")
    local = base._get_local_pca_mat_path(str(series.directory), str(tmp_path / "pca_mat.npy"), 5, 1, None)
    assert np.array_equal(base._load_local_pca_mat(local, 1), load_basis(tmp_path / "pca_mat.npy").components)


def test_the_same_result_is_not_made_twice(walk, tmp_path, caplog):
    series, _ = walk
    out = tmp_path / "pca_mat.npy"
    fit_basis(series, 3, out=out)
    stamps = [path.stat().st_mtime_ns for path in (out, out.with_suffix(".h5"))]
    caplog.set_level("INFO")
    again = fit_basis(series, 3, out=out)
    assert again.n_components == 3
    assert "nothing to do" in caplog.text
    assert [path.stat().st_mtime_ns for path in (out, out.with_suffix(".h5"))] == stamps
