"""An environment of its own for the packages that dimred is compared with: PyTorch, transformers, PEFT, mergekit.

It is made once and takes 1.6 GB, in the folder ``dimred-peers`` of the user's cache; the environment variable
DIMRED_PEERS names another folder.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

PACKAGES = ("torch==2.13.0", "mergekit==0.1.5", "transformers", "peft", "ema-pytorch")
PROGRAM = Path(__file__).parents[1] / "benchmarks" / "merge_peers.py"


FOLDER = Path(
    os.environ.get("DIMRED_PEERS") or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dimred-peers"
)
COMPLETE = FOLDER / "complete"


@cache
def peers() -> Path:
    """Make the environment unless it is there, and return the folder with its programs."""
    if not COMPLETE.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", FOLDER], check=True)
        subprocess.run([FOLDER / "bin" / "pip", "install", "--quiet", *PACKAGES], check=True)
        COMPLETE.touch()
    return FOLDER / "bin"


class Cost(NamedTuple):
    """The cost of a whole process, imports included: seconds, and peak private memory (RssAnon) in bytes."""

    seconds: float
    own_bytes: int


def measured(command: Sequence[object]) -> Cost:
    """Run a command, and return what its process cost; it must end with status 0."""
    peak, started = 0, time.perf_counter()
    with TemporaryFile("w+") as said:
        with subprocess.Popen(list(map(str, command)), stdout=said, stderr=said) as process:
            while process.poll() is None:
                found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
                peak = max(peak, int(found[1]) * 1024 if found else 0)
                time.sleep(0.01)
            seconds = time.perf_counter() - started
        said.seek(0)
        assert process.returncode == 0, said.read()
    return Cost(seconds, peak)


def program(*arguments: object) -> Cost:
    """Run a function of ``merge_peers.py`` in the environment, and return what the process cost.

    Args:
        arguments: the function's name and its arguments, as on the command line.
    """
    return measured([peers() / "python", "-W", "ignore", PROGRAM, *arguments])
