import subprocess
import sys

import numpy as np
import pytest

from dimred.errors import CheckpointError, ConfigError, SeriesError
from dimred.subspace import job
from dimred.subspace.basis import load_basis
from dimred.subspace.orthonormalise import TOLERANCE, deviation
from dimred.subspace.passes import block_width, working_bytes
from dimred.subspace.pca import fit_basis
from dimred.weights.checkpoint_io import write_checkpoint
from dimred.weights.digest import CHUNK
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries
from tests.oracles.pca import gram_schmidt, principal_components, subspace_distance
from tests.oracles.planted import as_weights, planted, random_walk, write_series

M = 2 * CHUNK + 4321  # several blocks, several strips, none of them full


def row_gram(basis):
    rows = np.asarray(basis.components, np.float64)
    return rows @ rows.T


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    directory = tmp_path_factory.mktemp("walk")
    snapshots = random_walk(12, M)
    write_series(directory, snapshots)
    return CheckpointSeries.open(directory), snapshots


def test_a_planted_spectrum_is_recovered(tmp_path):
    values = np.array([30.0, 10.0, 3.0, 1.0, 0.3])
    snapshots, directions = planted(9, M, values)
    basis = fit_basis(write_series(tmp_path, snapshots), 5)
    assert np.allclose(basis.singular_values, values, rtol=1e-5)  # the snapshots themselves were rounded to float32
    assert np.allclose(basis.explained_variance, values**2 / 8, rtol=2e-5)
    assert basis.explained_variance_ratio.sum() == pytest.approx(1, abs=1e-5)
    assert subspace_distance(basis.components, directions) < 1e-4


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
    assert deviation(row_gram(basis)) == pytest.approx(basis.companion.deviation, abs=1e-12)
    assert basis.companion.deviation < 1e-7


def test_a_small_variance_beside_a_large_mean_loses_nothing(tmp_path):
    values = np.array([1e-2, 5e-3, 2e-3])
    snapshots, _ = planted(8, M, values, mean_size=1.0)
    basis = fit_basis(write_series(tmp_path, snapshots), 3)
    _, components, exact = principal_components(snapshots, 3)
    assert np.allclose(basis.singular_values, exact[:3], rtol=1e-9)
    assert subspace_distance(basis.components, components) < 1e-6


def test_where_it_came_from_is_recorded(walk):
    series, _ = walk
    basis = fit_basis(series.select(last=8), 3)
    assert [(s.file, s.step, s.digest) for s in basis.snapshots] == [
        (entry.file, entry.step, entry.digest) for entry in series.entries[-8:]
    ]
    assert basis.layout == series.layout
    assert basis.kind == "pca"


def test_the_result_does_not_depend_on_the_memory_limit(walk, tmp_path):
    series, _ = walk
    for name, width in (("narrow", CHUNK), ("wide", 4 * CHUNK)):
        fit_basis(series, 5, out=tmp_path / f"{name}.npy", max_memory=working_bytes(12, M, 5, width))
    assert (tmp_path / "narrow.npy").read_bytes() == (tmp_path / "wide.npy").read_bytes()
    assert (tmp_path / "narrow.h5").read_bytes() == (tmp_path / "wide.h5").read_bytes()


def test_the_order_and_the_kind_of_files_make_no_difference(walk, tmp_path):
    series, snapshots = walk
    for number in np.random.default_rng(0).permutation(12):
        write_checkpoint(tmp_path / f"x-{number}_1.safetensors", as_weights(snapshots[number]))
    layout = series.layout
    other = fit_basis(CheckpointSeries.open(tmp_path), 5, layout=layout)
    assert np.array_equal(other.components, fit_basis(series, 5).components)


def test_boost_reads_the_file(walk, tmp_path):
    base = pytest.importorskip("mindspore.boost.base")
    series, _ = walk
    fit_basis(series, 5, out=tmp_path / "pca_mat.npy")
    local = base._get_local_pca_mat_path(str(series.directory), str(tmp_path / "pca_mat.npy"), 5, 1, None)
    assert np.array_equal(base._load_local_pca_mat(local, 1), load_basis(tmp_path / "pca_mat.npy").components)


def test_project_and_back_project_are_the_matrix_products(walk):
    series, snapshots = walk
    basis = fit_basis(series, 5)
    rows = np.asarray(basis.components, np.float64)
    assert np.allclose(basis.project(snapshots[3]), rows @ snapshots[3], rtol=1e-12)
    coordinates = np.arange(5.0)
    assert np.allclose(basis.back_project(coordinates), rows.T @ coordinates, rtol=1e-6, atol=1e-9)


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
    monkeypatch.setattr(job, "TOLERANCE", np.inf)
    assert deviation(row_gram(fit_basis(series, 6))) > TOLERANCE, "this case no longer needs the repair"


def test_a_share_of_variance_sets_the_number_of_rows(walk):
    series, snapshots = walk
    _, _, values = principal_components(snapshots, 1)
    explained = np.cumsum(values**2) / np.sum(values**2)
    basis = fit_basis(series, 0.9)
    assert basis.n_components == int(np.searchsorted(explained, 0.9)) + 1


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


def test_nothing_but_the_two_files_is_left(walk, tmp_path):
    fit_basis(walk[0], 3, out=tmp_path / "pca_mat.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pca_mat.h5", "pca_mat.npy"]


def test_the_same_result_is_not_made_twice(walk, tmp_path):
    series, _ = walk
    out = tmp_path / "pca_mat.npy"
    fit_basis(series, 3, out=out)
    stamps = [path.stat().st_mtime_ns for path in (out, out.with_suffix(".h5"))]
    notes = []
    again = fit_basis(series, 3, out=out, note=notes.append)
    assert again.n_components == 3
    assert "nothing to do" in notes[0]
    assert [path.stat().st_mtime_ns for path in (out, out.with_suffix(".h5"))] == stamps


@pytest.mark.parametrize("change", [{"n_components": 4}, {"kind": "snapshots"}, {"n_components": 0.5}])
def test_another_result_is_never_replaced_without_being_told_to(walk, tmp_path, change):
    series, _ = walk
    out = tmp_path / "pca_mat.npy"
    fit_basis(series, 3, out=out)
    before = (out.read_bytes(), out.with_suffix(".h5").read_bytes())
    arguments = {"n_components": 3, **change}
    with pytest.raises(ConfigError, match="--force to replace"):
        fit_basis(series, out=out, **arguments)
    with pytest.raises(ConfigError, match="--force to replace"):
        fit_basis(series.select(skip_first=1), 3, out=out)
    assert (out.read_bytes(), out.with_suffix(".h5").read_bytes()) == before
    assert len(list(tmp_path.iterdir())) == 2
    made = fit_basis(series, out=out, overwrite=True, **arguments)
    assert load_basis(out).companion.digest == made.companion.digest


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (
            {"n_components": 32},
            SeriesError,
            r"n_components is 32, which needs at least 33 .* gives 12\. .* 11 or fewer",
        ),
        ({"n_components": None}, SeriesError, "at least 33"),
        ({"n_components": 12}, SeriesError, "at least 13"),
        ({"n_components": 13, "kind": "snapshots"}, SeriesError, "at least 13"),
        ({"n_components": 0}, ConfigError, "n_components is 0"),
        ({"n_components": True}, ConfigError, "n_components is True"),
        ({"n_components": 1.0}, ConfigError, r"n_components is 1\.0"),
        ({"n_components": 0.5, "kind": "snapshots"}, ConfigError, r"n_components is 0\.5"),
        ({"n_components": 3, "kind": "ica"}, ConfigError, "kind is 'ica'"),
        ({"n_components": 3, "max_memory": 10_000_000}, ConfigError, "max_memory leaves 10 MB"),
        ({"n_components": 3, "name": "a.txt"}, ConfigError, r"must end in \.npy"),
        ({"n_components": 3, "name": "no/a.npy"}, ConfigError, "there is no folder"),
        ({"n_components": 3, "append": True}, Exception, "is not a whole .npy file"),
    ],
)
def test_what_can_not_be_done_is_refused_and_nothing_written(walk, tmp_path, arguments, error, words):
    out = tmp_path / arguments.pop("name", "pca_mat.npy")
    with pytest.raises(error, match=words):
        fit_basis(walk[0], out=out, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_another_network_is_refused(walk, tmp_path):
    layout = WeightLayout(("conv.weight", "other"), ((1, M // 3), (M - M // 3,)))
    with pytest.raises(CheckpointError, match="no parameter 'other'"):
        fit_basis(walk[0], 3, out=tmp_path / "a.npy", layout=layout)


def spoil(series, number, how):
    """Make snapshot ``number`` bad in a way that is only seen when it is read in full; its size stays."""
    path = series.paths[number]
    content = bytearray(path.read_bytes())
    content[-4:] = {
        "nan": b"\0\0\xc0\x7f",
        "infinite": b"\0\0\x80\x7f",
        "bit": bytes([content[-4] ^ 1, *content[-3:]]),
    }[how]
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("nan", r"net-4_4\.ckpt has a number that is not finite in the parameter 'fc' \(entry 66\)"),
        ("infinite", r"net-4_4\.ckpt has a number that is not finite in the parameter 'fc' \(entry 66\)"),
        ("bit", r"net-4_4\.ckpt is not what was written"),
    ],
)
def test_damage_inside_a_snapshot_is_found_or_skipped(tmp_path, how, words):
    snapshots = random_walk(8, 107)
    series = write_series(tmp_path / "s", snapshots)
    spoil(series, 3, how)
    out = tmp_path / "pca_mat.npy"
    with pytest.raises(CheckpointError, match=words):
        fit_basis(series, 3, out=out)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    with pytest.warns(UserWarning, match=words):
        basis = fit_basis(series, 3, out=out, skip_bad=True)
    clean = fit_basis(write_series(tmp_path / "clean", np.delete(snapshots, 3, axis=0)), 3)
    assert np.array_equal(basis.components, clean.components)
    with pytest.raises(SeriesError, match=r"at least 8 snapshots; .* gives 7 \(1 bad ones left out\)"):
        fit_basis(series, 7, out=tmp_path / "b.npy", skip_bad=True)
    assert not list(tmp_path.glob("b.npy*"))


def test_collinear_snapshots_are_refused_with_their_rank_and_nothing_is_left(tmp_path):
    snapshots = random_walk(4, 500)[[0, 1, 2, 3, 3, 2, 1]]
    series = write_series(tmp_path / "s", snapshots)
    with pytest.raises(SeriesError, match="span only 3 directions"):
        fit_basis(series, 5, out=tmp_path / "a.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_full_disk_is_said_before_anything_is_read(walk, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1_000})
    monkeypatch.setattr("dimred.subspace.job.shutil.disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match="MB too little free space"):
        fit_basis(walk[0], 3, out=tmp_path / "a.npy")
    assert list(tmp_path.iterdir()) == []


def test_block_width_keeps_within_the_memory():
    for limit in (140e6, 200e6, 1e9):
        width = block_width(40, 10**8, 32, int(limit))
        assert width % CHUNK == 0
        assert working_bytes(40, 10**8, 32, width) <= limit


def test_the_networks_order_decides_not_the_manifests(walk):
    series, snapshots = walk
    layout = WeightLayout(series.layout.names[::-1], series.layout.shapes[::-1])
    basis = fit_basis(series, 3, layout=layout)
    assert basis.layout == layout
    turned = basis.layout.unflatten(basis.mean)
    straight = series.layout.unflatten(snapshots.astype(np.float64).mean(axis=0).astype(np.float32))
    assert all(np.array_equal(turned[name], straight[name]) for name in straight)


def test_a_failing_disk_is_one_clear_line_and_the_work_is_kept(walk, tmp_path):
    """A real limit on the size of files, in a process of its own."""
    series, _ = walk
    code = (
        "import resource, sys\n"
        "from dimred.cli.main import app\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))\n"
        "app()"
    )
    out = tmp_path / "a.npy"
    command = [sys.executable, "-c", code, "pca", "--ckpt-dir", series.directory, "--out", out, "--n-components", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"error: Writing {out} failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy.unfinished"]
    assert fit_basis(series, 3, out=out).n_components == 3
