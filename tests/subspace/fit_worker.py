"""Fits a basis slowly, for a test to kill it: ``python fit_worker.py SNAPSHOTS OUT MEMORY [SUFFIX] [--append]``.

Prints the phase, the columns done and the bytes read so far after each block, and waits a little. With SUFFIX it stops
before a file is renamed to a name that ends so.
"""

import sys
import time
from pathlib import Path

from dimred.subspace.fit import fit_basis
from dimred.weights.series import CheckpointSeries

folder, out, memory, *suffix = (word for word in sys.argv[1:] if word != "--append")
rename = Path.replace


def report(phase: str, done: int, total: int) -> None:
    bytes_read = int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])
    print(phase.split()[0], done, bytes_read, flush=True)
    time.sleep(0.02)


def stop_before(self: Path, target: Path) -> Path:
    if str(target).endswith(suffix[0]):
        print("renaming", 0, 0, flush=True)
        time.sleep(60)
    return rename(self, target)


if suffix:
    Path.replace = stop_before
series = CheckpointSeries.open(folder)
fit_basis(series, 3, out=out, max_memory=int(memory), append="--append" in sys.argv, progress=report)
