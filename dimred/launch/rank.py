"""The processes of one rank: the one that msrun starts, and the program that it runs.

python -m dimred.launch.rank OUT STAGE PROGRAM [ARGUMENTS ...]

The first keeps the program's log, and tells the launcher how it ended. msrun starts its scheduler with the same
command: on node 0 it becomes the process through which the ranks find each other, elsewhere it ends at once.
"""

import ctypes
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from dimred.files.run_names import ENVIRONMENT_LOG, RANK_LOG
from dimred.launch.channel import tell_launcher
from dimred.launch.job import NODE_RANK, rank_command, rank_folder
from dimred.launch.rank_table import read_rank_table

_SCHEDULER = "from mindspore import communication; communication.init()"  # it ends when the ranks have ended
_SHOWN = ("ASCEND", "CUDA", "DEVICE", "DIMRED", "DNNL", "GLOG", "HCCL", "LD_LIBRARY", "MS_", "OMP", "ONEDNN", "PATH",
          "PYTHON", "RANK", "TMPDIR", "VIRTUAL_ENV")  # fmt: skip
# After a failure the launcher ends the job; if msrun saw it first, it would kill ranks that have something to say.
_SECONDS_FOR_THE_LAUNCHER = 30
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have Linux kill this process (SIGKILL) when the one that started it is gone; it stays so across ``exec``."""
    with suppress(AttributeError, OSError):  # elsewhere, where there is no msrun either
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def outlive_sigterm() -> None:
    """Leave SIGTERM, which Slurm and systemd send to every process of a job, to the launcher and the ranks' programs.

    What this process starts ignores it too, until it has a handler of its own: msrun has none for SIGTERM.
    """
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main(out: str, stage: str, program: str, *arguments: str) -> int:
    """Run the rank's program to its end; its exit status, or 128 + n where signal n killed it."""
    die_with_parent()
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        if os.environ[NODE_RANK] != "0":
            return 0
        os.execv(sys.executable, [sys.executable, "-c", _SCHEDULER])
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # not SIG_IGN, which the program would inherit
    rank = int(os.environ["RANK_ID"])
    tell_launcher("hello")
    if "RANK_TABLE_FILE" in os.environ:
        os.environ["DEVICE_ID"] = str(read_rank_table(Path(os.environ["RANK_TABLE_FILE"]))[rank].device_id)
    os.environ["PYTHONUNBUFFERED"] = "1"
    folder = rank_folder(Path(out), rank, stage)
    command = rank_command(program, arguments, folder)
    _log_environment(folder / ENVIRONMENT_LOG, command)
    with (folder / RANK_LOG).open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
    tell_launcher("program", pid=process.pid)
    status = process.wait()
    tell_launcher("ended", status=status)
    if status != 0:
        time.sleep(_SECONDS_FOR_THE_LAUNCHER)
    return status if status >= 0 else 128 - status


def _log_environment(log: Path, command: list[str]) -> None:
    """Add the time, the command, and what of the environment matters to a run (not all of it: it may hold secrets)."""
    shown = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_SHOWN))
    with log.open("a", encoding="utf-8") as file:
        print(f"# {time.strftime('%Y-%m-%d %H:%M:%S')} {socket.gethostname()}", file=file)
        print(f"# {shlex.join(command)}", *shown, sep="\n", file=file)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
