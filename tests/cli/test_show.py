import json

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.subspace.fit import fit_basis
from tests.helpers.commands import dimred_here
from tests.helpers.planted import as_weights, planted, write_series

M = 3_000


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made")
    snapshots, _ = planted(8, M, np.array([6.0, 3.0, 2.0]))
    series = write_series(directory / "s", snapshots)
    return fit_basis(series, 3, out=directory / "pca_mat.npy"), series


@pytest.mark.parametrize("suffix", [".npy", ".h5"])
def test_a_basis_is_described(made, suffix):
    basis, series = made
    done = dimred_here("show", basis.path.with_suffix(suffix), status=0)
    assert "3 directions of 3,000 weights" in done.stdout
    assert "8: net-1_1.ckpt (step 1) to net-8_8.ckpt (step 8)" in done.stdout
    assert f"3 parameters, fingerprint {basis.layout.fingerprint[:16]}" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1] in "123" and "%" in line]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("1", "73.469%", "73.469%"), ("2", "18.367%", "91.837%"), ("3", "8.163%", "100.000%")
    ]  # fmt: skip
    for entry in series.entries:
        assert f"{entry.file}  {entry.digest[:16]}" in done.stdout


def test_a_basis_is_compared_with_a_checkpoint(made, tmp_path):
    basis, series = made
    other = {**as_weights(np.zeros(M)), "fc": np.zeros(3)}
    write_checkpoint(tmp_path / "other.ckpt", other)
    for checkpoint, said, status in (
        (series.paths[0], "net-1_1.ckpt: yes", 0),
        (tmp_path / "other.ckpt", "no, its parameter 'fc' has shape (3,) instead of (1995,)", 1),
    ):
        call = ("show", basis.path, "--checkpoint", checkpoint)
        assert said in dimred_here(*call, status=status).stdout
        found = json.loads(dimred_here(*call, "--json", status=status).stdout)
        assert (found["fits"], found["difference"] is None) == (status == 0, status == 0)
        assert found["explained_variance_ratio"] == basis.explained_variance_ratio.tolist()
        assert [source["digest"] for source in found["snapshots"]] == [entry.digest for entry in series.entries]


def test_a_bare_matrix(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(2, M, dtype=np.float32))
    found = json.loads(dimred_here("show", tmp_path / "a.npy", "--json").stdout)
    assert found == {"path": str(tmp_path / "a.npy"), "n_components": 2, "n_weights": M}
    for size, status in ((M, 0), (M + 1, 1)):
        write_checkpoint(tmp_path / "b.ckpt", as_weights(np.zeros(size)))
        done = dimred_here("show", tmp_path / "a.npy", "--checkpoint", tmp_path / "b.ckpt", status=status)
        assert "2 directions of 3,000 weights" in done.stdout
        assert ("3,001 weights instead of 3,000" in done.stdout) == (status == 1)
        assert done.stderr.startswith("warning: ")
