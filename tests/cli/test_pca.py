import json

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.subspace.basis import load_basis
from dimred.subspace.fit import fit_basis
from tests.helpers.commands import dimred, dimred_here
from tests.helpers.planted import as_weights, random_walk, write_series

M = 5_000


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return write_series(tmp_path_factory.mktemp("Läufe 1"), random_walk(40, M))


def pca_here(*arguments, cwd=None):
    return dimred_here("pca", *arguments, cwd=cwd)


def test_the_command_writes_what_fit_basis_gives(series, tmp_path):
    done = dimred("pca", "--ckpt-dir", series.directory, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pca_mat.npy: 32 directions of 40 snapshots of 5,000 weights")
    assert "reading snapshots" in done.stderr
    assert "writing basis" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pca_mat.h5", "pca_mat.npy"]
    assert np.array_equal(load_basis(tmp_path / "pca_mat.npy").components, fit_basis(series).components)


def test_selection_and_size(series, tmp_path):
    out = tmp_path / "a b.npy"
    options = ("--last", 30, "--n-components", 4, "--out", out)
    assert pca_here("--ckpt-dir", series.directory, *options).returncode == 0
    basis = load_basis(out)
    assert [source.step for source in basis.snapshots] == list(range(11, 41))
    expected = fit_basis(series.select(last=30), 4)
    assert np.array_equal(basis.components, expected.components)


def test_plan_and_result_for_programs(series, tmp_path):
    common = ("--ckpt-dir", series.directory, "--out", tmp_path / "a.npy", "--n-components", 5, "--json")
    planned = json.loads(pca_here(*common, "--plan").stdout)
    assert (planned["n_snapshots"], planned["n_weights"], planned["read_bytes"]) == (40, M, 4 * 40 * M)
    assert planned["disk_bytes"] >= 4 * M * 7
    assert not (tmp_path / "a.npy").exists()
    made = json.loads(pca_here(*common).stdout)
    assert (made["path"], made["n_components"], made["n_snapshots"]) == (str(tmp_path / "a.npy"), 5, 40)
    assert made["explained_variance"] == load_basis(tmp_path / "a.npy").explained_variance_ratio.sum()


def test_force_and_refusal(series, tmp_path):
    out = tmp_path / "pca_mat.npy"
    common = ("--ckpt-dir", series.directory, "--out", out)
    assert pca_here(*common, "--last", 36).returncode == 0
    before = out.read_bytes()
    refused = pca_here(*common)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: ")
    assert "--force" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert out.read_bytes() == before
    assert pca_here(*common, "--n-components", 3, "--force").returncode == 0
    assert load_basis(out).n_components == 3


def test_bad_snapshots_are_named_and_left_out_when_asked(tmp_path):
    series = write_series(tmp_path / "s", random_walk(6, M))
    series.paths[2].write_bytes(series.paths[2].read_bytes()[:-9])
    common = ("--ckpt-dir", tmp_path / "s", "--out", tmp_path / "a.npy", "--n-components", 3)
    refused = pca_here(*common)
    assert refused.returncode == 2
    assert "net-3_3.ckpt" in refused.stderr
    assert not (tmp_path / "a.npy").exists()
    done = pca_here(*common, "--skip-bad")
    assert done.returncode == 0, done.stderr
    assert "left out: " in done.stderr
    assert "net-3_3.ckpt" in done.stderr
    assert [source.step for source in load_basis(tmp_path / "a.npy").snapshots] == [1, 2, 4, 5, 6]


def test_names_come_from_a_file_when_asked(series, tmp_path):
    (tmp_path / "s").mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        extra = {"whatever.fc": rng.standard_normal(3), "moments.fc": rng.standard_normal(M - M // 3 - 5)}
        write_checkpoint(tmp_path / "s" / f"n-{number}_1.ckpt", {**extra, **as_weights(rng.standard_normal(M))})
    common = ("--ckpt-dir", tmp_path / "s", "--n-components", 3, "--out")
    guessed = pca_here(*common, tmp_path / "guessed.npy")
    assert "1 entries of each snapshot are not weights and are left out, such as 'moments.fc'" in guessed.stderr
    assert load_basis(tmp_path / "guessed.npy").n_weights == M + 3
    given = fit_basis(series, 3, out=tmp_path / "given.npy").path
    for number, source in enumerate([series.directory / "manifest.json", series.paths[0], given]):
        out = tmp_path / f"{number}.npy"
        assert pca_here(*common, out, "--names-from", source).returncode == 0
        assert load_basis(out).layout == series.layout


def test_raw_snapshots(series, tmp_path):
    done = pca_here("--ckpt-dir", series.directory, "--basis", "snapshots", "--out", tmp_path / "a.npy")
    assert done.returncode == 0, done.stderr
    assert load_basis(tmp_path / "a.npy").kind == "snapshots"
    assert load_basis(tmp_path / "a.npy").n_components == 40


def test_the_plan_writes_nothing_and_says_what_is_needed(series, tmp_path):
    done = pca_here("--ckpt-dir", series.directory, "--plan", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "snapshots   40 of 5,000 weights"
    assert [line.split()[0] for line in lines[1:]] == ["reading", "disk", "memory"]
    assert list(tmp_path.iterdir()) == []


def test_one_snapshot_where_33_are_needed(series, tmp_path):
    done = pca_here("--ckpt-dir", series.directory, "--last", 1, cwd=tmp_path)
    assert done.returncode == 2
    assert "needs at least 33 snapshots" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--n-components", "many"), "'many'"),
        (("--n-components", "0"), "--n-components is '0'; it must be at least 1"),
        (("--last", "0"), "last is 0"),
        (("--basis", "ica"), "--basis is 'ica'; allowed: 'pca', 'snapshots'"),
        (("--out", "a.txt"), "must end in .npy"),
    ],
)
def test_wrong_options_are_one_clear_line(series, tmp_path, options, words):
    done = pca_here("--ckpt-dir", series.directory, *options, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path):
    done = pca_here("--ckpt-dir", tmp_path / "gone", cwd=tmp_path)
    assert done.returncode == 2
    assert "gone' does not exist" in done.stderr


def test_snapshots_of_mindspore_itself(tmp_path):
    """A folder as mindspore.train.ModelCheckpoint leaves it: optimizer state, statistics, read-only files."""
    mindspore = pytest.importorskip("mindspore")
    nn = mindspore.nn
    network = nn.SequentialCell(nn.Dense(20, 10), nn.BatchNorm1d(10), nn.Dense(10, 3))
    cell = nn.TrainOneStepCell(
        nn.WithLossCell(network, nn.MSELoss()), nn.Momentum(network.trainable_params(), 0.1, 0.9)
    )
    images, labels = mindspore.ops.standard_normal((8, 20)), mindspore.ops.standard_normal((8, 3))
    cell.set_train()
    for epoch in range(1, 7):
        cell(images, labels)
        mindspore.save_checkpoint(cell, str(tmp_path / f"mlp-{epoch}_1.ckpt"))
    done = pca_here("--ckpt-dir", tmp_path, "--n-components", 4, "--out", tmp_path / "pca_mat.npy")
    assert done.returncode == 0, done.stderr
    basis = load_basis(tmp_path / "pca_mat.npy", network=network)
    last = basis.layout.flatten({p.name: p for p in network.get_parameters()})
    centred = last.astype(np.float64) - basis.mean
    inside = basis.back_project(basis.project(centred))
    assert np.linalg.norm(centred - inside) < 0.2 * np.linalg.norm(centred)
    assert len(CheckpointSeries.open(tmp_path)) == 6
