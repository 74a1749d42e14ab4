import numpy as np
import pytest

from dimred.errors import BasisMismatchError, ConfigError, SeriesError
from dimred.files.digest import CHUNK
from dimred.subspace.basis import load_basis
from dimred.subspace.fit import fit_basis
from dimred.weights.checkpoint_io import write_checkpoint
from dimred.weights.series import CheckpointSeries
from tests.helpers.planted import as_weights, random_walk, write_series

M = CHUNK + 777
SNAPSHOTS = random_walk(12, M)


def check_same_bytes(appended, series, *options, **more):
    """The appended basis has the files of a fresh run."""
    fresh = fit_basis(series, *options, out=appended.path.with_name("fresh.npy"), **more).path
    for suffix in (".npy", ".h5"):
        assert appended.path.with_suffix(suffix).read_bytes() == fresh.with_suffix(suffix).read_bytes()


@pytest.mark.parametrize("at_once", [True, False])
def test_appending_gives_what_a_fresh_run_gives(tmp_path, at_once):
    out = tmp_path / "pca_mat.npy"
    fit_basis(write_series(tmp_path / "s", SNAPSHOTS[:9]), 5, out=out)
    for count in [12] if at_once else [10, 12]:
        first = len(CheckpointSeries.open(tmp_path / "s")) + 1
        series = write_series(tmp_path / "s", SNAPSHOTS[first - 1 : count], first_step=first)
        appended = fit_basis(series, out=out, append=True)
    check_same_bytes(appended, series, 5)
    assert load_basis(out).snapshots == appended.snapshots


def test_snapshots_may_come_in_between_and_in_a_folder_without_manifest(tmp_path):
    (tmp_path / "s").mkdir()
    for step, vector in enumerate(SNAPSHOTS, 1):
        write_checkpoint(tmp_path / "s" / f"n-{step}_1.ckpt", as_weights(vector))
    series = CheckpointSeries.open(tmp_path / "s")
    out = tmp_path / "pca_mat.npy"
    fit_basis(series.select(every=2), 4, out=out)
    check_same_bytes(fit_basis(series, out=out, append=True), series, 4)


def test_the_number_of_rows_may_change(tmp_path):
    out = tmp_path / "pca_mat.npy"
    fit_basis(write_series(tmp_path / "s", SNAPSHOTS[:9]), 5, out=out)
    series = write_series(tmp_path / "s", SNAPSHOTS[9:], first_step=10)
    check_same_bytes(fit_basis(series, 7, out=out, append=True), series, 7)


def test_nothing_new_is_nothing_to_do(tmp_path):
    out = tmp_path / "pca_mat.npy"
    series = write_series(tmp_path / "s", SNAPSHOTS[:9])
    fit_basis(series, 5, out=out)
    stamp = out.stat().st_mtime_ns
    fit_basis(series, out=out, append=True)
    assert out.stat().st_mtime_ns == stamp


def test_earlier_snapshots_that_are_gone_or_changed_are_named(tmp_path):
    out = tmp_path / "pca_mat.npy"
    fit_basis(write_series(tmp_path / "s", SNAPSHOTS[:9]), 5, out=out)
    before = out.read_bytes()
    series = write_series(tmp_path / "s", SNAPSHOTS[9:], first_step=10)
    with pytest.raises(SeriesError, match=r"2 of the 9 snapshots .* are gone .* the first is net-1_1\.ckpt"):
        fit_basis(series.select(skip_first=2), out=out, append=True)
    other = write_series(tmp_path / "t", random_walk(12, M, seed=5))
    with pytest.raises(SeriesError, match="9 of the 9 snapshots"):
        fit_basis(other, out=out, append=True)
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pca_mat.h5", "pca_mat.npy", "s", "t"]


def test_a_changed_earlier_snapshot_without_manifest_is_found_by_its_digest(tmp_path):
    (tmp_path / "s").mkdir()
    for step, vector in enumerate(SNAPSHOTS[:6], 1):
        write_checkpoint(tmp_path / "s" / f"n-{step}_1.ckpt", as_weights(vector))
    series = CheckpointSeries.open(tmp_path / "s")
    out = tmp_path / "pca_mat.npy"
    fit_basis(series.select(last=5), 3, out=out)
    write_checkpoint(series.paths[2], as_weights(SNAPSHOTS[2] + 1))
    with pytest.raises(Exception, match=r"n-3_1\.ckpt is not what was written"):
        fit_basis(CheckpointSeries.open(tmp_path / "s"), out=out, append=True)


def test_what_can_not_be_appended_to_is_refused(tmp_path):
    out = tmp_path / "pca_mat.npy"
    series = write_series(tmp_path / "s", SNAPSHOTS[:6])
    fit_basis(series, 4, kind="snapshots", out=out)
    with pytest.raises(ConfigError, match="raw snapshots"):
        fit_basis(series, 4, out=out, append=True)
    with pytest.raises(ConfigError, match="raw snapshots"):
        fit_basis(series, 4, kind="snapshots", out=out, append=True)
    np.save(tmp_path / "bare.npy", np.eye(3, M, dtype=np.float32))
    with pytest.warns(UserWarning, match="can't be checked"), pytest.raises(ConfigError, match=r"no bare\.h5"):
        fit_basis(series, 4, out=tmp_path / "bare.npy", append=True)
    small = write_series(tmp_path / "t", random_walk(6, 100))
    fit_basis(small, 3, out=tmp_path / "small.npy")
    with pytest.raises(BasisMismatchError, match="another network"):
        fit_basis(series, 3, out=tmp_path / "small.npy", append=True)


@pytest.mark.parametrize("manifest", [True, False])
def test_repeated_snapshots_are_told_apart_by_name(tmp_path, manifest):
    out = tmp_path / "pca_mat.npy"
    fit_basis(write_series(tmp_path / "s", SNAPSHOTS[[0, 1, 1, 2, 0, 3]]), 2, out=out)
    series = write_series(tmp_path / "s", SNAPSHOTS[[3, 4]], first_step=7)
    if not manifest:
        (tmp_path / "s" / "manifest.json").unlink()
        series = CheckpointSeries.open(tmp_path / "s")
    check_same_bytes(fit_basis(series, out=out, append=True), series, 2)


def test_a_snapshot_is_the_same_only_under_its_name(tmp_path):
    out = tmp_path / "pca_mat.npy"
    fit_basis(write_series(tmp_path / "s", SNAPSHOTS[[0, 1, 1, 2]]), 2, out=out)
    with pytest.raises(SeriesError, match=r"2 of the 4 snapshots .* the first is net-3_3\.ckpt"):
        fit_basis(write_series(tmp_path / "t", SNAPSHOTS[[0, 1, 2, 3]]), out=out, append=True)
