"""Average a folder of bfloat16 checkpoints in one way, in a process of its own.

Usage: python -m tests.benchmarks.merge_engine ENGINE FOLDER OUT. Prints the seconds and the processor's seconds,
without imports, and the peak private memory (RssAnon).
"""

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import deserialize
from safetensors.numpy import save_file

import dimred
from dimred.averaging.windows import profile_coefficients
from dimred.merging.inputs import open_checkpoints
from dimred.merging.output import write_network

_STEP = 1 << 20


def read_once(folder: Path, out: Path) -> None:
    """Read every byte of the checkpoints, and write one checkpoint's size: the least that any average has to do."""
    paths = sorted(folder.glob("*/model.safetensors"))
    buffer = bytearray(_STEP)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    with out.open("wb") as file:
        for _ in range(0, paths[0].stat().st_size, _STEP):
            file.write(buffer)
        file.flush()
        os.fsync(file.fileno())


def plain_loop(folder: Path, out: Path) -> None:
    """Average in float64 by the obvious loop over the safetensors library; NumPy has no bfloat16."""
    totals: dict[str, np.ndarray] = {}
    paths = sorted(folder.glob("*/model.safetensors"))
    for path in paths:
        for name, tensor in deserialize(path.read_bytes()):
            wide = np.frombuffer(tensor["data"], np.uint16).astype(np.uint32) << 16
            totals[name] = totals.get(name, 0.0) + wide.view(np.float32).astype(np.float64)
    tensors = {}
    for name, total in totals.items():
        bits = (total / len(paths)).astype(np.float32).view(np.uint32)
        tensors[name] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    save_file(tensors, out)


def candidate(folder: Path, out: Path) -> None:
    """Write a moving average of all checkpoints as it is written for a metric, which is not flushed to the disk."""
    checkpoints = open_checkpoints([folder])
    coefficients = profile_coefficients("exponential=0.8", [checkpoint.step for checkpoint in checkpoints])
    write_network(checkpoints, coefficients, out, checkpoints[-1])


ENGINES: dict[str, Callable[[Path, Path], object]] = {
    "read once, write once": read_once,
    "dimred merge, uniform": lambda folder, out: dimred.merge(folder, out),
    "dimred merge, ema=0.1": lambda folder, out: dimred.merge(folder, out, profile="ema=0.1"),
    "a candidate of a metric": candidate,
    "plain float64 loop": plain_loop,
}


def main() -> None:
    engine, folder, out = ENGINES[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3])
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
            peak = max(peak, int(found[1]) * 1024 if found else 0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    started, cpu = time.perf_counter(), time.process_time()
    engine(folder, out)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    done.set()
    watcher.join()
    print("RESULT", seconds, cpu, peak)


if __name__ == "__main__":
    main()
