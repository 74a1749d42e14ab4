"""Linux's way and the plain way that other systems get, in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.helpers import needs
from tests.helpers.commands import run
from tests.helpers.disks import disk_library, on_disk
from tests.helpers.like_mac import LIKE_MAC
from tests.helpers.processes import nothing_is_left, others, soon


@pytest.fixture(params=[pytest.param({}, marks=needs.LINUX, id="linux"), pytest.param(LIKE_MAC, id="plain")])
def way(request: pytest.FixtureRequest) -> dict[str, str]:
    return request.param


def test_the_plain_ways_are_taken() -> None:
    code = """
import os
from dimred.io.system import anonymous_file, boot_id, n_processors
assert n_processors() == os.cpu_count() and len(boot_id()) == 16
with anonymous_file() as file:
    file.write(b"12"), file.seek(0)
    assert file.read() == b"12" and not isinstance(file.name, str)
"""
    run(sys.executable, "-c", code, environment=LIKE_MAC, status=0)


RESERVE = """
import errno, os, sys, tempfile
from dimred.io.system import free_bytes, reserve
with tempfile.TemporaryFile(dir=".") as file:
    reserve(file.fileno(), 100_000)
    assert os.fstat(file.fileno()).st_size == 100_000
    print(512 * os.fstat(file.fileno()).st_blocks >= 100_000)
    try:
        reserve(file.fileno(), free_bytes(file.fileno()) + 2**40)
    except OSError as error:
        assert error.errno == errno.ENOSPC
    else:
        raise AssertionError
"""


def test_a_file_gets_its_length_and_a_disk_with_too_little_room_is_full(way: dict[str, str], tmp_path: Path) -> None:
    shown = run(sys.executable, "-c", RESERVE, cwd=tmp_path, environment=way, status=0).stdout
    assert shown == f"{way == {}}\n"  # only Linux's way takes the room


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return disk_library(tmp_path_factory.mktemp("disk"))


@pytest.mark.parametrize("error", ["EOPNOTSUPP", "EINVAL"])
def test_a_file_system_that_can_not_reserve_room_is_written_to(error: str, library: Path, tmp_path: Path) -> None:
    """As ZFS through some libraries, and file systems in user space."""
    environment = on_disk(library, fallocate=error)
    assert run(sys.executable, "-c", RESERVE, cwd=tmp_path, environment=environment, status=0).stdout == "False\n"


def test_an_io_error_while_room_is_reserved_is_an_error(library: Path, tmp_path: Path) -> None:
    done = run(sys.executable, "-c", RESERVE, cwd=tmp_path, environment=on_disk(library, fallocate="EIO"))
    assert "OSError: [Errno 5] Input/output error" in done.stderr


def test_a_flush_is_a_full_one_where_there_is_one(tmp_path: Path) -> None:
    """Of the file, and of the folder that it appears in."""
    notes = tmp_path / "notes"
    code = "from dimred.io.atomic import atomic_write; atomic_write('new/file', 'text')"
    (tmp_path / "new").mkdir()
    run(sys.executable, "-c", code, cwd=tmp_path, environment=LIKE_MAC | {"LIKE_MAC_FLUSHES": str(notes)}, status=0)
    assert notes.read_text().splitlines() == ["flush", "flush"]


STARTS = """
import signal, sys, time
from dimred.io.system import start_tied
process = start_tied([sys.executable, "-c", sys.argv[1], sys.argv[2]], signal.Signals[sys.argv[3]])
print(process.pid, process.wait(), flush=True)
time.sleep(600)
"""
TIED = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (folder / "got SIGTERM").touch())
(folder / "began").touch()
while not (folder / "end").exists():
    time.sleep(0.05)
"""


@contextmanager
def started(folder: Path, number: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a process that starts a tied program, until that has begun; in the end, end both."""
    command = [sys.executable, "-c", STARTS, TIED, str(folder), number]
    with subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert soon((folder / "began").exists)
            yield process
        finally:
            (folder / "end").touch()
            process.kill()


def test_a_tied_program_is_killed_with_the_process_that_started_it(way: dict[str, str], tmp_path: Path) -> None:
    with started(tmp_path, "SIGKILL", way) as process:
        assert not nothing_is_left(tmp_path)
        process.kill()
        assert soon(lambda: nothing_is_left(tmp_path))


def test_a_tied_program_gets_the_signal_that_was_asked_for(way: dict[str, str], tmp_path: Path) -> None:
    with started(tmp_path, "SIGTERM", way) as process:
        process.kill()
        assert soon((tmp_path / "got SIGTERM").exists)
        (tmp_path / "end").touch()
        assert soon(lambda: nothing_is_left(tmp_path))


def test_nothing_watches_a_program_that_has_ended(way: dict[str, str], tmp_path: Path) -> None:
    with started(tmp_path, "SIGKILL", way) as process:
        (tmp_path / "end").touch()
        assert process.stdout is not None
        assert process.stdout.readline().split()[1] == "0"
        pids = {one.pid for one in others() if str(tmp_path) in " ".join(one.info["cmdline"] or [])}
        assert soon(lambda: not {pid for pid in pids - {process.pid} if psutil.pid_exists(pid)})


SEEN = """
import signal, subprocess, sys
from dimred.io.system import start_tied
def seen(code, **options):
    process = start_tied(["sh", "-c", code], signal.SIGKILL, stdout=subprocess.PIPE, **options)
    shown = process.communicate()[0].decode().strip()
    return shown.replace(str(process.pid), "its process id"), process.returncode
print(seen("echo $$; exit 3"))
print(seen("kill -s TERM $$; echo stays", ignored=[signal.SIGTERM]))
print(seen("kill -s TERM $$; echo stays"))
print(seen("kill -s PIPE $$; echo stays"))
"""


def test_a_tied_program_is_an_ordinary_one(way: dict[str, str]) -> None:
    """It has the process id that was returned, and Python's own habits with signals are not passed on."""
    shown = run(sys.executable, "-c", SEEN, environment=way, status=0).stdout.splitlines()
    assert shown == ["('its process id', 3)", "('stays', 0)", "('', -15)", "('', -13)"]
