"""``dimred pca`` and ``dimred show``; ``dimred merge`` is in tests/merging."""

import json
import os
import re
import shutil

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.subspace.basis import load_basis
from dimred.subspace.fit import fit_basis
from tests.helpers.commands import dimred, dimred_here
from tests.helpers.planted import as_weights, planted, random_walk, write_series

M = 5_000


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return write_series(tmp_path_factory.mktemp("Läufe 1"), random_walk(40, M))


def pca_here(*arguments, cwd=None, status=0):
    return dimred_here("pca", *arguments, cwd=cwd, status=status)


def test_the_command_writes_what_fit_basis_gives(series, tmp_path):
    process = dimred("pca", "--ckpt-dir", series.directory, cwd=tmp_path, status=0)
    assert process.stdout.startswith("pca_mat.npy: 32 directions from 40 snapshots of 5,000 weights")
    assert "reading snapshots" in process.stderr
    assert "writing basis" in process.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pca_mat.h5", "pca_mat.npy"]
    assert np.array_equal(load_basis(tmp_path / "pca_mat.npy").components, fit_basis(series).components)


def test_selection_and_size(series, tmp_path):
    out, raw = tmp_path / "a b.npy", tmp_path / "raw.npy"
    pca_here("--ckpt-dir", series.directory, "--last", 30, "--n-components", 4, "--out", out)
    assert np.array_equal(load_basis(out).components, fit_basis(series.select(last=30), 4).components)
    pca_here("--ckpt-dir", series.directory, "--basis", "snapshots", "--out", raw)
    assert (load_basis(raw).kind, load_basis(raw).n_components) == ("snapshots", 40)


def test_the_result_for_programs(series, tmp_path):
    common = ("--ckpt-dir", series.directory, "--out", tmp_path / "a.npy", "--n-components", 5, "--json")
    facts = json.loads(pca_here(*common).stdout)
    assert (facts["path"], facts["n_components"], facts["n_snapshots"]) == (str(tmp_path / "a.npy"), 5, 40)
    assert facts["explained_variance"] == load_basis(tmp_path / "a.npy").explained_variance_ratio.sum()


def test_a_result_is_replaced_only_with_force(series, tmp_path):
    out = tmp_path / "pca_mat.npy"
    common = ("--ckpt-dir", series.directory, "--out", out)
    pca_here(*common, "--last", 36)
    before = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    for other in (("--last", 40), ("--last", 36, "--n-components", 3), ("--last", 36, "--basis", "snapshots")):
        assert "--force to replace" in pca_here(*common, *other, status=2).stderr
        assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == before
    pca_here(*common, "--n-components", 3, "--force")
    assert load_basis(out).n_components == 3


def test_bad_snapshots_are_named_and_left_out_when_asked(tmp_path):
    series = write_series(tmp_path / "s", random_walk(6, M))
    series.paths[2].write_bytes(series.paths[2].read_bytes()[:-9])
    common = ("--ckpt-dir", tmp_path / "s", "--out", tmp_path / "a.npy", "--n-components", 3)
    assert re.search(r"net-3_3\.ckpt .* or leave it out with --skip-bad\.", pca_here(*common, status=2).stderr)
    process = pca_here(*common, "--skip-bad")
    assert re.search(r"left out: .*net-3_3\.ckpt", process.stderr)
    assert "--skip-bad" not in process.stderr
    assert [source.step for source in load_basis(tmp_path / "a.npy").snapshots] == [1, 2, 4, 5, 6]


def test_names_come_from_a_file_when_asked(series, tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "state").mkdir()
    for number in range(6):
        weights = as_weights(rng.standard_normal(M))
        state = {f"moments.{name}": rng.standard_normal(value.shape) for name, value in weights.items()}
        write_checkpoint(tmp_path / "state" / f"n-{number}_1.ckpt", {**state, **weights, "global_step": np.int32(1)})
    common = ("--ckpt-dir", tmp_path / "state", "--n-components", 3, "--out")
    process = pca_here(*common, tmp_path / "state.npy", status=2)
    assert "n-0_1.ckpt holds an optimizer's state, as its entry 'global_step' shows; " in process.stderr
    other = fit_basis(series, 3, out=tmp_path / "given.npy").path
    for number, source in enumerate([series.directory / "manifest.json", series.paths[0], other]):
        out = tmp_path / f"{number}.npy"
        pca_here(*common, out, "--names-from", source)
        assert load_basis(out).layout == series.layout


def test_names_come_from_a_folder_of_one_checkpoint(series, tmp_path):
    layout = series.layout
    weights = {name: np.zeros(shape, np.float32) for name, shape in zip(layout.names, layout.shapes, strict=True)}
    out = ("--n-components", 3, "--out", tmp_path / "a.npy", "--names-from")
    (tmp_path / "net").mkdir()
    write_checkpoint(tmp_path / "net" / "model.safetensors", weights)
    pca_here("--ckpt-dir", series.directory, *out, tmp_path / "net")
    assert load_basis(tmp_path / "a.npy").layout == layout
    process = pca_here("--ckpt-dir", series.directory, *out, series.directory, status=2)
    assert "has 40 files of weights; a folder that is one checkpoint has one" in process.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--last", "0"), "error: --last is 0"),
        (("--last", "1"), "needs at least 33 snapshots"),
        (("--out", "a.txt"), "must end in .npy"),
    ],
)
def test_wrong_options_are_one_clear_line(series, tmp_path, options, words):
    process = pca_here("--ckpt-dir", series.directory, *options, cwd=tmp_path, status=2)
    assert words in process.stderr
    assert len(process.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("files", "options", "words"),
    [
        ("ab", ("--order", "time"), "error: --order is 'time'; allowed: "),
        ("12", ("--order", "mtime"), "error: --order is 'mtime', but "),
        ("12", ("--last", "0"), "error: --last is 0; "),
        ("12", ("--from-step", "5"), "error: --from-step 5 and --to-step 2 leave none of the 2 checkpoints"),
        ("12", ("--lora-rank", "0"), "error: --lora-rank is 0; "),
        ("12", ("--profile", "0.5,0.2,0.3"), "error: --profile is '0.5,0.2,0.3', which has 3 coefficients"),
        ("12", ("--minimize",), "error: --minimize, --maximize, --budget and --resume need --metric"),
    ],
)
def test_merge_names_its_options_where_python_names_arguments(files, options, words, tmp_path):
    for name in files:
        write_checkpoint(tmp_path / f"{name}.ckpt", {"m.w": np.ones(3, np.float32)})
        os.utime(tmp_path / f"{name}.ckpt", (1, 1))
    process = dimred_here("merge", tmp_path, "--out", tmp_path / "mean.ckpt", *options, status=2)
    assert process.stderr.replace("\n", " ").startswith(words)


@pytest.mark.parametrize("name", ["last", "rest", "out"])
def test_a_folder_that_is_called_like_an_option_keeps_its_name(name, tmp_path):
    (tmp_path / name).mkdir()
    for number in (1, 2):
        write_checkpoint(tmp_path / name / f"net-{number}.ckpt", {"m.w": np.ones(3, np.float32)})
    (tmp_path / "z.ckpt").write_bytes(b"")
    process = dimred_here("merge", name, "z.ckpt", "--out", "mean.ckpt", "--order", "name", cwd=tmp_path, status=2)
    assert f"error: {name} has 2 files of weights" in process.stderr


@pytest.fixture(scope="module")
def basis_and_series(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made")
    snapshots, _ = planted(8, M, np.array([6.0, 3.0, 2.0]))
    series = write_series(directory / "s", snapshots)
    return fit_basis(series, 3, out=directory / "pca_mat.npy"), series


@pytest.mark.parametrize("suffix", [".npy", ".h5"])
def test_a_basis_is_described(basis_and_series, suffix):
    basis, series = basis_and_series
    process = dimred_here("show", basis.path.with_suffix(suffix), status=0)
    assert "3 directions of 5,000 weights" in process.stdout
    assert "8: net-1_1.ckpt (step 1) to net-8_8.ckpt (step 8)" in process.stdout
    assert f"3 parameters, fingerprint {basis.layout.fingerprint[:16]}" in process.stdout
    rows = [line.split() for line in process.stdout.splitlines() if line.strip()[:1] in "123" and "%" in line]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("1", "73.469%", "73.469%"),
        ("2", "18.367%", "91.837%"),
        ("3", "8.163%", "100.000%"),
    ]
    for entry in series.entries:
        assert f"{entry.file}  {entry.digest[:16]}" in process.stdout


def test_a_basis_is_compared_with_a_checkpoint(basis_and_series, tmp_path):
    basis, series = basis_and_series
    other = {**as_weights(np.zeros(M)), "fc": np.zeros(3)}
    write_checkpoint(tmp_path / "other.ckpt", other)
    integers = {name: np.ones(value.shape, np.int8) for name, value in as_weights(np.zeros(M)).items()}
    write_checkpoint(tmp_path / "integers.ckpt", integers)
    (tmp_path / "folder").mkdir()
    shutil.copy(series.paths[0], tmp_path / "folder" / "net.ckpt")
    for checkpoint, words, status in (
        (series.paths[0], "net-1_1.ckpt: yes", 0),
        (tmp_path / "folder", "folder: yes", 0),
        (tmp_path / "integers.ckpt", "no, its parameter 'conv.weight' has the type int8, not a float type", 1),
        (tmp_path / "other.ckpt", "no, its parameter 'fc' has shape (3,) instead of (3329,)", 1),
    ):
        call = ("show", basis.path, "--checkpoint", checkpoint)
        assert words in dimred_here(*call, status=status).stdout
        result = json.loads(dimred_here(*call, "--json", status=status).stdout)
        assert (result["fits"], result["difference"] is None) == (status == 0, status == 0)
        assert result["explained_variance_ratio"] == basis.explained_variance_ratio.tolist()
        assert [source["digest"] for source in result["snapshots"]] == [entry.digest for entry in series.entries]


def test_a_bare_matrix(tmp_path):
    np.save(tmp_path / "a.npy", np.eye(2, M, dtype=np.float32))
    result = json.loads(dimred_here("show", tmp_path / "a.npy", "--json").stdout)
    assert result == {"path": str(tmp_path / "a.npy"), "n_components": 2, "n_weights": M}
    for size, status in ((M, 0), (M + 1, 1)):
        write_checkpoint(tmp_path / "b.ckpt", as_weights(np.zeros(size)))
        process = dimred_here("show", tmp_path / "a.npy", "--checkpoint", tmp_path / "b.ckpt", status=status)
        assert "2 directions of 5,000 weights" in process.stdout
        assert ("5,001 weights instead of 5,000" in process.stdout) == (status == 1)
        assert process.stderr.startswith("warning: ")
