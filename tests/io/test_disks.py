"""Disks that can't flush a folder, lock a file, or be written to, in real processes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.subspace.fit import fit_basis
from tests.helpers.commands import dimred
from tests.helpers.disks import disk_library, on_disk
from tests.helpers.planted import random_walk, write_series


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return disk_library(tmp_path_factory.mktemp("disk"))


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return write_series(tmp_path_factory.mktemp("series") / "s", random_walk(4, 300))


def slow(error):
    """Make another error of the same kind as the one that is tried by default."""
    return pytest.param(error, marks=pytest.mark.slow)


def written(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", ["EINVAL", slow("ENOTSUP"), slow("ENOSYS")])
def test_a_disk_that_can_not_flush_a_folder_or_reserve_room_is_written_to(library, series, tmp_path, error):
    environment = on_disk(library, fsync_of_folder=error, fallocate=error)
    dimred("pca", "--ckpt-dir", series.directory, "--n-components", 2, cwd=tmp_path, environment=environment, status=0)
    merge = ("merge", series.directory, "--out", "m.safetensors")
    dimred(*merge, cwd=tmp_path, environment=environment, status=0)
    assert written(tmp_path) == ["m.safetensors", "m.safetensors.json", "pca_mat.h5", "pca_mat.npy"]
    assert len(read_checkpoint(tmp_path / "m.safetensors")) == 3


def test_a_failing_flush_of_a_folder_is_still_an_error(library, series, tmp_path):
    environment = on_disk(library, fsync_of_folder="EIO")
    process = dimred(
        "pca", "--ckpt-dir", series.directory, "--n-components", 2, cwd=tmp_path, environment=environment, status=2
    )
    assert "error: Writing pca_mat.npy failed: Input/output error" in process.stderr


@pytest.mark.parametrize("error", [slow("ENOSYS"), "ENOLCK", slow("EOPNOTSUPP")])
def test_a_disk_without_locks_is_named_with_a_remedy_and_nothing_is_left(library, series, tmp_path, error):
    environment = on_disk(library, flock=error)
    out = tmp_path / "m.safetensors"
    process = dimred("merge", series.directory, "--out", out, environment=environment, status=2)
    assert f"error: --out is '{out}', but files can't be locked there (" in process.stderr
    assert "name a folder on a local disk, or mount that disk with locks" in process.stderr
    assert len(process.stderr.splitlines()) == 1
    assert written(tmp_path) == []


@pytest.mark.parametrize("error", [slow("ENOSYS"), slow("ENOLCK"), "EWOULDBLOCK"])
def test_a_basis_needs_no_locks(library, series, tmp_path, error):
    """Another process may also hold a lock on the file, which is whole all the same."""
    environment = on_disk(library, flock=error)
    call = ("pca", "--ckpt-dir", series.directory, "--n-components", 2)
    dimred(*call, cwd=tmp_path, environment=environment, status=0)
    process = dimred("show", "pca_mat.npy", "--json", cwd=tmp_path, environment=environment, status=0)
    assert json.loads(process.stdout)["n_components"] == 2
    other = fit_basis(series, 2)
    assert np.array_equal(np.load(tmp_path / "pca_mat.npy"), other.components)


@pytest.mark.parametrize("answer", ["zeros", slow("ENOSYS")])
def test_a_disk_that_does_not_say_how_much_is_free_is_not_full(library, tmp_path, answer):
    """As gcsfuse and s3fs."""
    code = """
from pathlib import Path
from dimred.io.system import free_bytes
from dimred.stages.disk import check_space
check_space(Path(), 10**18)
assert free_bytes(Path()) is None
"""
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | on_disk(library, statvfs=answer), check=True
    )


def test_a_run_on_a_disk_that_became_read_only_is_refused_in_a_sentence(library, tmp_path):
    """Resuming begins with the log of each rank, before a rank is started."""
    folder = tmp_path / "run" / "device0_stage_1"
    folder.mkdir(parents=True)
    (folder / "train.log").write_text("earlier\n")
    (folder / "pins.json").touch()
    call = (
        "train",
        "stage-1",
        tmp_path,
        "--device-target",
        "CPU",
        "--devices",
        1,
        "--out",
        tmp_path / "run",
        "--resume",
    )
    process = dimred(*call, environment=on_disk(library, read_only=tmp_path), status=2)
    assert "made or written to (Read-only file system); make it writable, or name another folder" in process.stderr
    assert (folder / "train.log").read_text() == "earlier\n"
