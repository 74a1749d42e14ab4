"""Nothing but the launcher reaches a job's processes, and none of them outlives it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from dimred.errors import StoppedError
from dimred.launch.launcher import launch
from dimred.launch.programs import start
from dimred.launch.signals import StopSignals
from tests.helpers import needs
from tests.helpers.like_mac import LIKE_MAC
from tests.helpers.processes import nothing_is_left, soon
from tests.launch.jobs import Launcher, job


def sockets(process: psutil.Process) -> set[str]:
    """Return the inodes of a process's sockets."""
    links = (str(link.readlink()) for link in Path(f"/proc/{process.pid}/fd").iterdir() if link.is_symlink())
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:")}


def listening() -> set[str]:
    """Return the inodes of all listening sockets of this host."""
    found = set()
    for name, column, state, inode in (("unix", 3, "00010000", 6), ("tcp", 3, "0A", 9), ("tcp6", 3, "0A", 9)):
        rows = [line.split() for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
        found |= {row[inode] for row in rows if row[column] == state}
    return found


@needs.LINUX
def test_nobody_listens_and_each_rank_holds_one_socket_of_its_own(tmp_path, capfd):
    launcher = Launcher(tmp_path, "save", "75", devices=2)
    ranks = [psutil.Process(pid) for pid in launcher.pids(2).values()]
    watching = psutil.Process(launcher.process.pid)
    held = [sockets(rank) for rank in ranks]
    assert [len(each) for each in held] == [1, 1]
    assert not held[0] & held[1]
    assert len(sockets(watching)) == 3  # one for each rank and the scheduler
    assert not sockets(watching) & (held[0] | held[1])
    (scheduler,) = set(watching.children()) - set(ranks)
    assert not sockets(scheduler) & (held[0] | held[1] | sockets(watching))
    assert not (sockets(watching) | held[0] | held[1]) & listening()
    launcher.process.terminate()
    assert launcher.end()[0] == 75
    assert launch(job(tmp_path / "below", "inherit")) == 0
    assert "sockets: [] False" in capfd.readouterr().out


@pytest.mark.parametrize("environment", [{}, LIKE_MAC], ids=["linux", "plain"])
def test_a_rank_whose_launcher_is_already_dead_never_begins(tmp_path, environment):
    """The launcher dies before the new process has tied itself to it."""
    began, forked, python = tmp_path / "began", tmp_path / "forked", tmp_path / "slow python"
    python.write_text(f"#!/bin/sh\ntouch '{forked}'; sleep 1; exec '{sys.executable}' \"$@\"\n")
    python.chmod(0o755)
    program = f"""
import pathlib, sys
from dimred.launch.processes import Child
sys.executable = {str(python)!r}
Child(["touch", {str(began)!r}], {{}}, pathlib.Path({str(tmp_path / "log")!r}))
"""
    with subprocess.Popen([sys.executable, "-c", program], env=os.environ | environment) as launcher:
        assert soon(forked.exists)
        launcher.kill()
    time.sleep(1.5)
    assert not began.exists()


def test_nothing_outlives_a_launcher_that_is_killed(tmp_path):
    launcher = Launcher(tmp_path, "wait", devices=2)
    launcher.pids(2)
    launcher.process.kill()
    launcher.end()
    assert soon(lambda: nothing_is_left(tmp_path))


def test_a_program_that_a_signal_finds_half_started_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_exec, started = subprocess._fork_exec, list[int]()  # type: ignore[attr-defined]

    def interrupted(*arguments: object) -> int:
        started.append(fork_exec(*arguments))
        os.kill(os.getpid(), signal.SIGTERM)
        return started[0]

    monkeypatch.setattr(subprocess, "_fork_exec", interrupted)
    with pytest.raises(StoppedError), StopSignals(), ExitStack() as running:
        start(running, ["sleep", 60])
    assert not psutil.pid_exists(started[0])
