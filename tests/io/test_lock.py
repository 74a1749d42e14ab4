"""One process in a folder at a time, and nothing to clean up after a crash."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dimred.errors import RunError
from dimred.io.atomic import FolderLock
from dimred.io.run_names import LOCK

HOLDER = Path(__file__).with_name("lock_holder.py")


def test_the_holder_and_what_it_holds_are_named_and_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, "--out is 'here'")
    with subprocess.Popen([sys.executable, HOLDER, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(RunError, match=rf"^--out is 'here', where process {holder.pid} on .* is at work"), lock:
            pass
        holder.send_signal(signal.SIGKILL)
    assert (tmp_path / LOCK).exists()
    with lock:
        pass


def test_a_damaged_note_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_bytes(b"\xff{")
    with FolderLock(tmp_path, "a"):
        (tmp_path / LOCK).write_bytes(b"[" * 100_000)
        with pytest.raises(RunError, match="another process is at work"), FolderLock(tmp_path, "a"):
            pass


def test_a_file_that_was_removed_is_no_lock(tmp_path: Path) -> None:
    with FolderLock(tmp_path, "a") as first:
        first.remove()
        with FolderLock(tmp_path, "a"):
            assert (tmp_path / LOCK).exists()


def test_a_folder_with_a_result_stays(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "a" / "b", "a") as lock:
        (tmp_path / "a" / "b" / "result").touch()
        lock.remove()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["result"]
    (tmp_path / "a" / "b" / "result").unlink()
    with FolderLock(tmp_path / "a" / "b", "a") as lock:
        lock.remove()
    assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / LOCK).symlink_to(tmp_path / "no" / "such")
    with pytest.raises(OSError, match="symbolic links"), FolderLock(tmp_path, "a"):
        pass
