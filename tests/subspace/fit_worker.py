"""Fits a basis slowly, for a test to kill it: ``python fit_worker.py SNAPSHOTS OUT [STOP_BEFORE]``.

Prints a line for each block and waits a little. It stops before a file is renamed to a name that ends in STOP_BEFORE.
An earlier OUT is replaced.
"""

import sys
import time
from pathlib import Path

from dimred.subspace.fit import fit_basis

rename = Path.replace


def report(phase: str, done: int, total: int) -> None:
    print(phase.split()[0], done, flush=True)
    time.sleep(0.02)


def replace(self: Path, target: Path) -> Path:
    if str(target).endswith(sys.argv[3]):
        print("renaming", 0, flush=True)
        time.sleep(60)
    return rename(self, target)


if len(sys.argv) > 3:
    Path.replace = replace
fit_basis(sys.argv[1], 3, out=sys.argv[2], overwrite=True, progress=report)
