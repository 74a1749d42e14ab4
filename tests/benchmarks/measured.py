"""What the programs of ``growth`` have in common: each measures one thing in a process of its own.

A program ``ENGINES`` maps names to functions of a folder and a point, such as ``weights=1000000``. Called as
``python -m tests.benchmarks.PROGRAM NAME FOLDER KEY=NUMBER...`` it runs one, and the last line that it prints has the
figures as JSON; ``prepare`` writes the files of a point into the folder.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

Point = dict[str, int]  # key -> value
Engine = Callable[[Path, Point], dict[str, float]]
_BUFFER = bytearray(os.urandom(1 << 22))  # before anything is timed


def cost_of(work: Callable[[], object]) -> dict[str, float]:
    """Do the work; return the wall and processor seconds that it took, and the bytes that it read and wrote.

    The kernel counts as read what was asked for in calls, also from the page cache, and as written what was to go to
    the disk, through mappings too.
    """
    before, started, cpu = _bytes(), time.perf_counter(), time.process_time()
    work()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    read, written = (now - then for now, then in zip(_bytes(), before, strict=True))
    return {"seconds": seconds, "cpu": cpu, "read": read, "written": written}


def _bytes() -> tuple[int, int]:
    numbers = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(numbers["rchar"]), int(numbers["write_bytes"])


def read_and_write(paths: Iterable[Path], out: Path | None = None, size: int = 0) -> None:
    """Read all files once, and write and flush a file of so many bytes: the least that many a command has to do."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(_BUFFER):
                pass
    if out is not None:
        with out.open("wb", buffering=0) as file:
            for first in range(0, size, len(_BUFFER)):
                file.write(memoryview(_BUFFER)[: size - first])
            os.fsync(file.fileno())


def main(engines: dict[str, Engine]) -> None:
    """Run the engine that the command line names, and print its figures, with the peak of the process's memory."""
    name, folder, *pairs = sys.argv[1:]
    point = {key: int(value) for key, _, value in (pair.partition("=") for pair in pairs)}
    figures = engines[name](Path(folder), point)
    print(json.dumps({"peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, **figures}))
