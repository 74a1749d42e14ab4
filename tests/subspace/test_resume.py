"""A run killed at any moment is gone on from by the same call, and the result is the same to the last bit."""

import fcntl
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dimred.errors import RunError, StoppedError
from dimred.files.digest import CHUNK
from dimred.subspace.basis import load_basis
from dimred.subspace.fit import fit_basis
from dimred.subspace.gram_and_rows import LOST, SAVE_EVERY, working_bytes
from dimred.weights.checkpoint_io import write_checkpoint
from dimred.weights.series import CheckpointSeries
from tests.helpers.planted import as_weights, random_walk, write_series

N, K, BLOCKS = 6, 3, 20
M = BLOCKS * CHUNK - 99
MEMORY = working_bytes(N, M, K, CHUNK)  # so that a block is one chunk of columns

PROGRAM = Path(__file__).with_name("fit_worker.py")


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return write_series(tmp_path_factory.mktemp("series"), random_walk(N, M))


@pytest.fixture(scope="module")
def expected(series, tmp_path_factory):
    return fit_basis(series, K, out=tmp_path_factory.mktemp("expected") / "pca_mat.npy")


def bytes_read(process="self"):
    """All bytes the process has read, from files or the page cache."""
    return int(Path(f"/proc/{process}/io").read_text(encoding="ascii").split()[1])


def worker(series, out, *more):
    return [sys.executable, str(PROGRAM), str(series.directory), str(out), str(MEMORY), *more]


def kill_at(series, out, phase, done, *more):
    """Run the worker until it reports this phase and at least so many columns, then kill it.

    Returns:
        The bytes it read since its first report, up to its end.
    """
    command = worker(series, out, *more)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        first = None
        for line in process.stdout:
            seen_phase, seen, so_far = line.split()
            first = int(so_far) if first is None else first
            if seen_phase == phase and int(seen) >= done:
                process.send_signal(signal.SIGSTOP)
                total = bytes_read(process.pid)
                process.send_signal(signal.SIGKILL)
                break
        else:
            pytest.fail("the worker ended before it could be killed")
    assert process.returncode == -signal.SIGKILL
    return total - first


def resume(series, out, **options):
    steps, notes = [], []
    basis = fit_basis(
        series, K, out=out, max_memory=MEMORY, progress=lambda *step: steps.append(step), note=notes.append, **options
    )
    return basis, steps, notes


def check(basis, expected, out):
    assert out.read_bytes() == expected.path.read_bytes()
    assert out.with_suffix(".h5").read_bytes() == expected.path.with_suffix(".h5").read_bytes()
    assert sorted(path.name for path in out.parent.iterdir()) == ["pca_mat.h5", "pca_mat.npy"]
    assert load_basis(out).n_components == basis.n_components


@pytest.mark.parametrize(("phase", "blocks"), [("reading", 4), ("reading", 19), ("writing", 1), ("writing", 17)])
def test_killed_and_resumed_equals_uninterrupted(series, expected, tmp_path, phase, blocks):
    (tmp_path / "uninterrupted").mkdir()
    out = tmp_path / "pca_mat.npy"
    killed = kill_at(series, out, phase, blocks * CHUNK)
    before = bytes_read()
    basis, steps, notes = resume(series, out)
    resumed = bytes_read() - before
    before = bytes_read()
    resume(series, tmp_path / "uninterrupted" / "pca_mat.npy")
    cost = killed + resumed - (bytes_read() - before)
    shutil.rmtree(tmp_path / "uninterrupted")
    check(basis, expected, out)
    print(f"the kill cost {cost:,} bytes of reading")
    assert cost <= LOST * 4 * N * CHUNK + 100_000  # and the state, and what Python itself reads
    first_phase, first_done, _ = steps[0]
    assert first_phase.startswith(phase), "the finished pass was repeated"
    assert first_done >= (blocks - 2 * SAVE_EVERY) * CHUNK, "more blocks were done again than may be"
    assert "Going on where an earlier run stopped" in notes[0]


def test_killed_twice(series, expected, tmp_path):
    out = tmp_path / "pca_mat.npy"
    kill_at(series, out, "reading", 8 * CHUNK)
    kill_at(series, out, "writing", 6 * CHUNK)
    basis, steps, _ = resume(series, out)
    check(basis, expected, out)
    assert steps[0][1] >= (6 - 2 * SAVE_EVERY) * CHUNK


@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize("suffix", [".npy", ".h5"])
def test_killed_before_a_rename(series, expected, tmp_path, suffix, manifest):
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "pca_mat.npy"
    if not manifest:
        for path in series.paths:
            (tmp_path / path.name).symlink_to(path)
        series = CheckpointSeries.open(tmp_path)
    kill_at(series, out, "renaming", 0, "pca_mat" + suffix)
    assert not out.exists()
    basis, steps, _ = resume(series, out)
    check(basis, expected, out)
    assert steps == []


def test_killed_between_the_renames_over_an_earlier_result_is_found_and_finished(series, tmp_path):
    """``--append``: the new metadata stands beside the old rows; loading says so, the same call finishes it."""
    out = tmp_path / "pca_mat.npy"
    fit_basis(series.select(last=N - 1), K, out=out)
    kill_at(series, out, "renaming", 0, "pca_mat.npy", "--append")
    with pytest.raises(Exception, match="their digests differ"):
        load_basis(out)
    resume(series, out, append=True)
    assert np.allclose(load_basis(out).gram, fit_basis(series, K).gram)


def test_another_job_does_not_go_on_with_what_was_left(series, expected, tmp_path):
    out = tmp_path / "pca_mat.npy"
    kill_at(series, out, "writing", 3 * CHUNK)
    notes = []
    basis = fit_basis(series.select(last=5), 2, out=out, note=notes.append)
    assert notes == []
    assert np.array_equal(basis.components, fit_basis(series.select(last=5), 2).components)


def test_a_snapshot_that_was_rewritten_meanwhile_starts_afresh(tmp_path):
    snapshots = random_walk(N, M)
    series = write_series(tmp_path / "s", snapshots)
    (tmp_path / "s" / "manifest.json").unlink()
    out = tmp_path / "pca_mat.npy"
    kill_at(CheckpointSeries.open(tmp_path / "s"), out, "writing", 3 * CHUNK)
    write_checkpoint(series.paths[0], as_weights(snapshots[0] * 2))
    basis, steps, notes = resume(CheckpointSeries.open(tmp_path / "s"), out)
    assert steps[0] == ("reading snapshots", 0, M)
    assert notes == []
    snapshots[0] *= 2
    assert np.allclose(basis.mean, snapshots.astype(np.float64).mean(axis=0), atol=1e-6)


def test_a_damaged_state_starts_afresh(series, expected, tmp_path):
    out = tmp_path / "pca_mat.npy"
    kill_at(series, out, "writing", 3 * CHUNK)
    state = tmp_path / "pca_mat.npy.unfinished" / "state.npz"
    state.write_bytes(state.read_bytes()[:-100])
    basis, steps, _ = resume(series, out)
    assert steps[0] == ("reading snapshots", 0, M)
    check(basis, expected, out)


def test_two_runs_for_one_result_do_not_meet(series, tmp_path):
    out = tmp_path / "pca_mat.npy"
    with subprocess.Popen(worker(series, out), stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        held = rf"^out is '{out}', where process {process.pid} on .* is at work"
        with pytest.raises(RunError, match=held):
            fit_basis(series, K, out=out)
        process.stdout.read()
    assert process.returncode == 0
    assert load_basis(out).n_components == K


@pytest.mark.parametrize("signalled", [KeyboardInterrupt(), StoppedError(signal.SIGTERM)])
def test_an_interrupt_keeps_what_was_done(signalled, series, expected, tmp_path):
    """By ctrl-C of ``dimred pca``, or by a signal to the run that fits its basis on the way."""
    out = tmp_path / "pca_mat.npy"

    def interrupt(phase, done, total):
        if done >= 8 * CHUNK:
            raise signalled

    with pytest.raises(type(signalled)):
        fit_basis(series, K, out=out, max_memory=MEMORY, progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["pca_mat.npy.unfinished"]
    basis, steps, _ = resume(series, out)
    assert steps[0][1] >= (8 - 2 * SAVE_EVERY) * CHUNK
    check(basis, expected, out)


def test_a_run_killed_while_it_removed_its_folder_leaves_none_behind_in_the_end(series, expected, tmp_path):
    out = tmp_path / "pca_mat.npy"
    fit_basis(series, K, out=out)
    left = tmp_path / "pca_mat.npy.unfinished"
    left.mkdir()
    (left / ".lock").touch()
    resume(series, out)
    assert not left.exists()
    check(load_basis(out), expected, out)


def test_a_run_whose_folder_was_removed_before_it_was_locked_makes_it_again(tmp_path, monkeypatch):
    """Another run of the same result ended in between, and removed the folder with the lock file in it."""
    series = write_series(tmp_path / "s", random_walk(N, 500))
    left = tmp_path / "pca_mat.npy.unfinished"
    left.mkdir()
    (left / "state.npz").touch()
    real, calls = fcntl.flock, []

    def ended_before(descriptor, operation):
        if not calls:
            shutil.rmtree(left)
        calls.append(operation)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", ended_before)
    basis = fit_basis(series, K, out=tmp_path / "pca_mat.npy")
    assert len(calls) >= 2
    assert np.array_equal(basis.components, fit_basis(series, K).components)
    assert not left.exists()
