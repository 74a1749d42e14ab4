"""Processes watched from outside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


def nothing_is_left(out: Path) -> bool:
    """Whether no other process has this folder in its command line."""
    return not any(str(out) in " ".join(process.info["cmdline"] or []) for process in others())


def others() -> Iterator[psutil.Process]:
    """All processes but this one; those that have ended and wait for their parent have no command line."""
    return (process for process in psutil.process_iter(["cmdline"]) if process.pid != os.getpid())


@contextmanager
def slow_writer(target: Path) -> Iterator[None]:
    """A process has written half of ``target`` atomically, and is killed when the block ends."""
    command = [sys.executable, str(Path(__file__).with_name("slow_writer.py")), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        yield
        process.send_signal(signal.SIGKILL)


def soon(claim) -> bool:
    for _ in range(200):
        if claim():
            return True
        time.sleep(0.05)
    return False


def run_and_watch(command: list[str]) -> int:
    """Run the command to its end; the most bytes of private memory it was seen to hold."""
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
