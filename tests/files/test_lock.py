"""One run in a folder at a time, and nothing to clean up after a crash."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dimred.errors import RunError
from dimred.files.lock import LOCK, RunLock

HOLDER = """
import sys, time
from pathlib import Path
from dimred.files.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_holder_is_named_and_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(RunError, match=rf"process {holder.pid} on .* is at work"), RunLock(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
    assert (tmp_path / LOCK).exists()
    with RunLock(tmp_path):
        pass


def test_a_damaged_note_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_bytes(b"\xff{")
    with RunLock(tmp_path):
        (tmp_path / LOCK).write_bytes(b"[" * 100_000)
        with pytest.raises(RunError, match="another process is at work"), RunLock(tmp_path):
            pass


def test_a_file_that_was_removed_is_no_lock(tmp_path: Path) -> None:
    with RunLock(tmp_path) as first:
        first.remove()
        with RunLock(tmp_path):
            assert (tmp_path / LOCK).exists()
