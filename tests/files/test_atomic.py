import os
import signal
import subprocess
import sys

import pytest

from dimred.files.atomic import atomic_write, open_atomic, remove_leftovers


def test_a_file_appears_only_when_the_block_ends(tmp_path):
    path = tmp_path / "a.json"
    with open_atomic(path) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.json"
    atomic_write(path, "old")

    def write_and_fail():
        with open_atomic(path) as file:
            file.write(b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_target_with_the_longest_name_can_be_written(tmp_path):
    path = tmp_path / ("n" * 255)
    atomic_write(path, "x")
    assert path.read_text() == "x"


def test_files_get_the_usual_permissions(tmp_path):
    old = os.umask(0o027)
    try:
        atomic_write(tmp_path / "a", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_leftovers_of_a_killed_process_are_removed_and_others_kept(tmp_path):
    code = (
        "import sys, time\nfrom dimred.files.atomic import open_atomic\n"
        f"with open_atomic({str(tmp_path / 'target')!r}) as file:\n"
        "    file.write(b'half'); file.flush(); print('writing', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        remove_leftovers(tmp_path)
        assert len(list(tmp_path.iterdir())) == 1, "a living process's file was removed"
        process.send_signal(signal.SIGKILL)
    (tmp_path / ".writing-mine.tmp").write_text("not ours")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".writing-mine.tmp"]
