"""One process that msrun starts: it runs a rank's program, keeps its log, and tells the launcher how it ended.

python -m dimred.launch.rank OUT STAGE PROGRAM [ARGUMENTS ...]

msrun starts its scheduler with the same command; that one becomes ``dimred.launch.scheduler`` on node 0, and ends at
once on the other nodes, which need none.
"""

import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

from dimred.launch.channel import launcher_address, tell
from dimred.launch.die_with_parent import die_with_parent
from dimred.launch.job import ENVIRONMENT_LOG, LAUNCHER, NODE_RANK, RANK_LOG
from dimred.launch.rank_table import read_rank_table

_SHOWN = ("ASCEND", "CUDA", "DEVICE", "DIMRED", "DNNL", "GLOG", "HCCL", "LD_LIBRARY", "MS_", "OMP", "ONEDNN", "PATH",
          "PYTHON", "RANK", "TMPDIR", "VIRTUAL_ENV")  # fmt: skip


def main(out: str, stage: str, program: str, *arguments: str) -> int:
    """Run the rank's program to its end; its exit status, 128 + n where signal n killed it."""
    die_with_parent()
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        if os.environ[NODE_RANK] != "0":
            return 0
        os.execv(sys.executable, [sys.executable, "-m", "dimred.launch.scheduler"])
    rank = int(os.environ["RANK_ID"])
    with socket.socket(socket.AF_UNIX) as launcher:
        launcher.connect(launcher_address(os.environ[LAUNCHER]))
        tell(launcher, rank=rank)
        if "RANK_TABLE_FILE" in os.environ:
            os.environ["DEVICE_ID"] = str(read_rank_table(Path(os.environ["RANK_TABLE_FILE"]))[rank].device_id)
        os.environ["PYTHONUNBUFFERED"] = "1"
        folder = Path(out) / f"device{rank}_{stage}"
        command = [sys.executable, "-m", program, *arguments, "--out", str(folder)]
        with (folder / ENVIRONMENT_LOG).open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in _environment_lines(command)))
        with (folder / RANK_LOG).open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
        tell(launcher, rank=rank, pid=process.pid)
        status = process.wait()
        tell(launcher, rank=rank, status=status)
    return status if status >= 0 else 128 - status


def _environment_lines(command: list[str]) -> list[str]:
    """The time, the command, and what of the environment matters to a run (not all of it: it may hold secrets)."""
    shown = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_SHOWN))
    return [f"# {time.strftime('%Y-%m-%d %H:%M:%S')} {socket.gethostname()}", f"# {shlex.join(command)}", *shown]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
