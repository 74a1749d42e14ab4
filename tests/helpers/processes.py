"""Processes watched from outside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def nothing_is_left(out: Path) -> bool:
    """Whether no process has this folder in its command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(out).encode() in command and state != "Z" and folder.name != str(os.getpid()):
            return False
    return True


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
        status = f"/proc/{process.pid}/status"
        while process.poll() is None:
            with open(status, encoding="ascii") as file:  # noqa: PTH123
                lines = [line for line in file if line.startswith("RssAnon:")]
            most = max([most, *(int(line.split()[1]) * 1024 for line in lines)])
            time.sleep(0.002)
        errors = process.stderr.read().decode()
    assert process.returncode == 0, errors
    return most
