"""Processes watched from outside."""

import os
import subprocess
import time
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
