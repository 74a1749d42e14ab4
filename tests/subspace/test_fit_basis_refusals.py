"""What fit_basis refuses or skips, and what is left when it is disturbed."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.layout import CHUNK, WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import CheckpointError, ConfigError, SeriesError, StoppedError
from dimred.subspace import fit
from dimred.subspace.basis import load_basis
from dimred.subspace.fit import fit_basis
from tests.helpers.planted import WALK_WIDTH as M
from tests.helpers.planted import random_walk, write_series

OTHER = WeightLayout(("conv.weight", "other"), ((1, M // 3), (M - M // 3,)))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (
            {"n_components": 12},
            SeriesError,
            r"is 12, which needs at least 13 .* gives 12\. .* 11 or fewer: .*--set search.n_components=11",
        ),
        ({"n_components": 13, "kind": "snapshots"}, SeriesError, "at least 13"),
        ({"n_components": 0}, ConfigError, "n_components is 0"),
        ({"n_components": True}, ConfigError, "n_components is True"),
        ({"n_components": 1.0}, ConfigError, r"n_components is 1\.0"),
        ({"n_components": 3, "kind": "ica"}, ConfigError, "kind is 'ica'"),
        ({"n_components": 3, "name": "a.txt"}, ConfigError, r"must end in \.npy"),
        ({"n_components": 3, "name": "no/a.npy"}, ConfigError, "there is no folder"),
        ({"n_components": 3, "out": 3}, ConfigError, r"out is 3; it must be the path of a \.npy file"),
        ({"n_components": 3, "layout": OTHER}, CheckpointError, "no parameter 'other'"),
        ({"n_components": 3, "last": 2}, SeriesError, r"gives 2\. .* ask for 1 or fewer: --n-components 1, "),
        ({"n_components": 1, "last": 1}, SeriesError, r"2 snapshots; .* gives 1\. Save more snapshots in stage 1\.$"),
    ],
)
def test_what_can_not_be_done_is_refused_and_nothing_written(walk, tmp_path, arguments, error, words):
    out, series = tmp_path / arguments.pop("name", "pca_mat.npy"), walk[0].select(arguments.pop("last", None))
    with pytest.raises(error, match=words):
        fit_basis(series, **{"out": out} | arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_network_that_no_snapshot_fits_is_what_is_wrong_and_not_a_snapshot(tmp_path, skip_bad, caplog):
    """Such as one with a layer that was frozen when the snapshots were taken."""
    network = nn.SequentialCell(nn.Dense(3, 2), nn.Dense(2, 2))
    network[0].weight.requires_grad = False
    series = CheckpointSeries.create(tmp_path / "s")
    for step in range(4):
        series.append({p.name: p + 1.0 * step for p in network.trainable_params()}, step=step, epoch=step)
    assert fit_basis(series, 1, network=network).n_weights == 8
    network[0].weight.requires_grad = True
    caplog.clear()
    with pytest.raises(CheckpointError) as refused:
        fit_basis(series, 1, network=network, skip_bad=skip_bad)
    assert str(refused.value).startswith(
        f"None of the 4 snapshots in {tmp_path / 's'} fits the network (the last: it has no parameter '0.weight' "
        "(2, 3)). A snapshot has the weights that were trained when it was taken; freeze the same ones now "
    )
    assert "skip" not in str(refused.value)
    assert not caplog.messages


def test_a_folder_without_snapshots_is_named_as_the_argument_series(tmp_path):
    with pytest.raises(SeriesError, match=f"^series is '{tmp_path}', which has neither a manifest"):
        fit_basis(tmp_path, 3)


def spoil(series, number, how):
    """Make snapshot ``number`` bad without changing its size, so that only a full read can see it."""
    path = series.paths[number]
    content = bytearray(path.read_bytes())
    content[-21:-17] = {  # the last weight; 17 bytes of checksum follow
        "nan": b"\0\0\xc0\x7f",
        "infinite": b"\0\0\x80\x7f",
        "bit": bytes([content[-21] ^ 1, *content[-20:-17]]),
    }[how]
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("nan", r"net-4_4\.ckpt has a number that is not finite in the parameter 'fc' \(entry 66\)"),
        ("infinite", "that is not finite in the parameter 'fc'"),
        ("bit", r"net-4_4\.ckpt is not what was written"),
    ],
)
def test_damage_inside_a_snapshot_is_found_or_skipped(tmp_path, how, words, caplog):
    snapshots = random_walk(8, 107)
    series = write_series(tmp_path / "s", snapshots)
    spoil(series, 3, how)
    out = tmp_path / "pca_mat.npy"
    with pytest.raises(CheckpointError, match=f"{words}.* or leave it out with skip_bad=True"):
        fit_basis(series, 3, out=out)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    basis = fit_basis(series, 3, out=out, skip_bad=True)
    assert re.search(words, caplog.text)
    clean = fit_basis(write_series(tmp_path / "clean", np.delete(snapshots, 3, axis=0)), 3)
    assert np.array_equal(basis.components, clean.components)
    assert fit_basis(series, kind="snapshots", skip_bad=True).n_components == 7  # all that are left
    with pytest.raises(SeriesError, match=r"at least 8 snapshots; .* gives 7\."):
        fit_basis(series, 7, out=tmp_path / "b.npy", skip_bad=True)
    assert not list(tmp_path.glob("b.npy*"))


def test_of_several_numbers_that_are_not_finite_the_first_is_named(tmp_path):
    """It is in the second block of columns, and not in the last parameter."""
    sizes = {"long": CHUNK + 100, "middle": 50, "last": 50}
    for number in range(3):
        weights = {name: np.full(size, number, np.float32) for name, size in sizes.items()}
        if number == 1:
            weights["middle"][[7, 9]] = weights["last"][3] = np.nan
        write_checkpoint(tmp_path / f"n-{number}_1.ckpt", weights)
    layout = WeightLayout(tuple(sizes), tuple((size,) for size in sizes.values()))
    with pytest.raises(CheckpointError, match=r"n-1_1\.ckpt has .* in the parameter 'middle' \(entry 7\)"):
        fit_basis(tmp_path, 1, layout=layout)


def test_collinear_snapshots_are_refused_with_their_rank_and_nothing_is_left(tmp_path):
    snapshots = random_walk(4, 500)[[0, 1, 2, 3, 3, 2, 1]]
    series = write_series(tmp_path / "s", snapshots)
    with pytest.raises(SeriesError, match=r"span only 3 directions .* Ask for n_components = 3 or fewer, or take more"):
        fit_basis(series, 5, out=tmp_path / "a.npy")
    nothing = write_series(tmp_path / "s" / "zeros", np.zeros((3, 107), np.float32))
    for kind in ("pca", "snapshots"):
        with pytest.raises(SeriesError, match=r"span only 0 directions .*\. Take more and different snapshots\.$"):
            fit_basis(nothing, 1, kind=kind, out=tmp_path / "a.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_a_failing_disk_is_one_clear_line_and_nothing_is_left(walk, tmp_path):
    """The limit on the size of files is a real one, in a process of its own."""
    out, program = tmp_path / "a.npy", Path(sys.executable).with_name("dimred")
    command = [program, "pca", "--ckpt-dir", walk[0].directory, "--out", out, "--n-components", "3"]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))  # noqa: E731
    process = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert process.returncode == 2
    assert f"error: Writing {out} failed" in process.stderr
    assert "Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def after(monkeypatch):
    """Return a function that has another one called after a pass over the snapshots, ``gram_pass`` or ``rows_pass``."""

    def call_after(name, act):
        do_pass = getattr(fit, name)

        def then_act(*arguments, **options):
            result = do_pass(*arguments, **options)
            act()
            return result

        monkeypatch.setattr(fit, name, then_act)

    return call_after


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), StoppedError(signal.SIGTERM)])
def test_an_interrupt_leaves_nothing(stop, walk, tmp_path, after):
    """Ctrl-C interrupts ``dimred pca``; a signal interrupts a run that fits its basis on the way."""

    def interrupt():
        raise stop

    after("rows_pass", interrupt)
    with pytest.raises(type(stop)):
        fit_basis(walk[0], 3, out=tmp_path / "pca_mat.npy")
    assert list(tmp_path.iterdir()) == []


def test_of_two_runs_for_one_result_the_slower_one_replaces_nothing(walk, tmp_path, after):
    out, faster = tmp_path / "pca_mat.npy", fit_basis(walk[0].select(last=11), 2, out=tmp_path / "faster.npy")

    def be_faster():
        for suffix in (".npy", ".h5"):
            shutil.copy(faster.path.with_suffix(suffix), out.with_suffix(suffix))

    after("gram_pass", be_faster)
    with pytest.raises(ConfigError, match="exists already"):
        fit_basis(walk[0], 3, out=out)
    assert np.array_equal(load_basis(out).components, faster.components)


def test_a_foreign_file_that_ends_in_h5_is_kept(walk, tmp_path):
    (tmp_path / "pca_mat.h5").write_text("mine")
    with pytest.raises(ConfigError, match=r"pca_mat\.h5' exists already"):
        fit_basis(walk[0], 3, out=tmp_path / "pca_mat.npy")
    assert (tmp_path / "pca_mat.h5").read_text() == "mine"


@pytest.mark.parametrize("name", ["gram_pass", "rows_pass"])
@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_snapshot_that_is_replaced_while_it_is_read_is_found_or_skipped(tmp_path, name, with_manifest, after):
    """The rows would be made of other weights than the spectrum, the digests and the Gram matrix beside them."""
    series = write_series(tmp_path, random_walk(6, M))
    replaced = series.paths[2]
    if not with_manifest:
        (tmp_path / "manifest.json").unlink()

    def replace_once():
        if replaced.stat().st_mtime_ns != 1:
            replaced.write_bytes(series.paths[4].read_bytes())
            os.utime(replaced, ns=(1, 1))

    after(name, replace_once)
    with pytest.raises(
        CheckpointError, match=rf"{replaced.name} was written or replaced while it was read\. .*skip_bad"
    ):
        fit_basis(tmp_path, 2, out=tmp_path / "a.npy")
    assert not {*tmp_path.glob("a.*")}
    os.utime(replaced, ns=(2, 2))
    if with_manifest:
        basis = fit_basis(tmp_path, 2, skip_bad=True)
        assert [source.file for source in basis.snapshots] == [path.name for path in series.paths if path != replaced]
