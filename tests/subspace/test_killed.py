"""A run that was killed or interrupted leaves nothing that disturbs the next one, which begins again."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dimred.errors import BasisMismatchError, ConfigError, StoppedError
from dimred.io.digest import CHUNK
from dimred.subspace.basis import load_basis
from dimred.subspace.fit import fit_basis
from tests.helpers.planted import random_walk, write_series

N, K, M = 6, 3, 4 * CHUNK - 99
PROGRAM = Path(__file__).with_name("fit_worker.py")


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return write_series(tmp_path_factory.mktemp("series"), random_walk(N, M))


@pytest.fixture(scope="module")
def expected(series, tmp_path_factory):
    return fit_basis(series, K, out=tmp_path_factory.mktemp("expected") / "pca_mat.npy")


def kill_at(series, out, phase, done, *more):
    """Run the worker until it reports this phase and at least so many columns, then kill it."""
    command = [sys.executable, str(PROGRAM), str(series.directory), str(out), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            seen_phase, seen = line.split()
            if seen_phase == phase and int(seen) >= done:
                process.kill()
                break
        else:
            pytest.fail("the worker ended before it could be killed")
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("phase", "done", "stop_before"),
    [
        ("reading", 2 * CHUNK, ()),
        ("writing", 2 * CHUNK, ()),
        ("renaming", 0, ("pca_mat.h5",)),
        ("renaming", 0, ("pca_mat.npy",)),
    ],
)
def test_a_killed_run_begins_again_and_its_leftovers_are_removed(series, expected, tmp_path, phase, done, stop_before):
    out = tmp_path / "pca_mat.npy"
    kill_at(series, out, phase, done, *stop_before)
    assert not out.exists()
    assert list(tmp_path.iterdir()), "nothing was begun"
    fit_basis(series, K, out=out)
    assert out.read_bytes() == expected.path.read_bytes()
    assert out.with_suffix(".h5").read_bytes() == expected.path.with_suffix(".h5").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pca_mat.h5", "pca_mat.npy"]


def test_a_kill_between_the_two_files_over_an_earlier_result_is_found_and_mended(series, expected, tmp_path):
    out = tmp_path / "pca_mat.npy"
    fit_basis(series.select(last=N - 1), K, out=out)
    kill_at(series, out, "renaming", 0, "pca_mat.npy")
    with pytest.raises(BasisMismatchError, match="their digests differ"):
        load_basis(out)
    with pytest.raises(ConfigError, match="--force to replace"):
        fit_basis(series, K, out=out)
    fit_basis(series, K, out=out, overwrite=True)
    assert np.array_equal(load_basis(out).components, expected.components)


@pytest.mark.parametrize("signalled", [KeyboardInterrupt(), StoppedError(signal.SIGTERM)])
def test_an_interrupt_leaves_nothing(signalled, series, tmp_path):
    """By ctrl-C of ``dimred pca``, or by a signal to the run that fits its basis on the way."""

    def interrupt(phase, done, total):
        if phase.startswith("writing"):
            raise signalled

    with pytest.raises(type(signalled)):
        fit_basis(series, K, out=tmp_path / "pca_mat.npy", progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_of_two_runs_for_one_result_the_slower_one_replaces_nothing(series, tmp_path):
    out, faster = tmp_path / "pca_mat.npy", []

    def progress(phase, done, total):
        if not faster:
            faster.append(fit_basis(series.select(last=N - 1), 2, out=out))

    with pytest.raises(ConfigError, match="would be replaced"):
        fit_basis(series, K, out=out, progress=progress)
    assert np.array_equal(load_basis(out).components, faster[0].components)


def test_a_file_of_somebody_else_that_ends_in_h5_is_kept(series, tmp_path):
    (tmp_path / "pca_mat.h5").write_text("mine")
    with pytest.raises(ConfigError, match=r"pca_mat\.h5 would be replaced"):
        fit_basis(series, K, out=tmp_path / "pca_mat.npy")
    assert (tmp_path / "pca_mat.h5").read_text() == "mine"
