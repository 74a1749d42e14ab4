"""Start processes and watch them from outside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil


def nothing_is_left(out: Path) -> bool:
    """Return whether no other process has this folder in its command line."""
    return not any(str(out) in " ".join(process.info["cmdline"] or []) for process in others())


def others() -> Iterator[psutil.Process]:
    """Iterate over all processes but this one; those that have ended and are not reaped have no command line."""
    return (process for process in psutil.process_iter(["cmdline"]) if process.pid != os.getpid())


_HELD = """
import sys, time
from pathlib import Path
from dimred.io.atomic import FolderLock, open_atomic
def wait():
    print("waiting", flush=True)
    time.sleep(60)
target = Path(sys.argv[1])
"""


@contextmanager
def held(code: str, target: Path) -> Iterator[subprocess.Popen[str]]:
    """Run code in a process until it calls ``wait()``, and kill it when the block ends; it has ``target`` as a name."""
    with subprocess.Popen([sys.executable, "-c", _HELD + code, target], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        yield process
        process.send_signal(signal.SIGKILL)


def slow_writer(target: Path) -> AbstractContextManager[object]:
    """Let a process write half of ``target`` atomically, and kill it when the block ends."""
    return held("with open_atomic(target) as file:\n    file.write(b'half'), file.flush(), wait()", target)


def soon(claim) -> bool:
    for _ in range(200):
        if claim():
            return True
        time.sleep(0.05)
    return False


def run_and_watch(command: list[str]) -> int:
    """Run the command to its end, and return its peak private memory in bytes, as seen from outside."""
    most = 0
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            memory = watched.memory_info()
            most = max(most, memory.rss - memory.shared)
            time.sleep(0.002)
        errors = process.stderr.read().decode()
    assert process.returncode == 0, errors
    return most
