"""The cost of a basis in memory, disk space and time, estimated before anything is read in full."""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from dimred.checkpoints.matrix import WeightMatrix
from dimred.errors import ConfigError
from dimred.io.digest import CHUNK, chunk_digests
from dimred.subspace.fit import result_bytes
from dimred.subspace.gram_and_rows import STRIP, add_products, check_memory, make_rows, working_bytes


@dataclass(frozen=True)
class Plan:
    """The cost of a basis.

    Attributes:
        n_snapshots, n_weights: N and M.
        read_bytes: the snapshots' weights; read twice, the second time mostly from the page cache.
        disk_bytes: the result while it is made.
        memory_bytes: the process's own, memory-mapped pages aside.
        seconds: from the first block of columns; it may take a multiple, because threads slow each other down.
    """

    n_snapshots: int
    n_weights: int
    read_bytes: int
    disk_bytes: int
    memory_bytes: int
    seconds: float


def make_plan(matrix: WeightMatrix, n_components: int, folder: Path, max_memory: int) -> Plan:
    """Estimate the cost of a basis with ``n_components`` rows in ``folder``.

    Raises:
        ConfigError: the folder does not exist, or the basis needs more than ``max_memory`` bytes.
    """
    if not folder.is_dir():
        raise ConfigError(f"--out lies in {str(folder)!r}, but there is no such folder; make it first.")
    n_snapshots, n_weights = matrix.shape
    check_memory(n_snapshots, n_weights, n_components, max_memory)
    return Plan(
        n_snapshots=n_snapshots,
        n_weights=n_weights,
        read_bytes=4 * n_snapshots * n_weights,
        disk_bytes=result_bytes(n_weights, n_components),
        memory_bytes=working_bytes(n_snapshots, n_weights, n_components),
        seconds=_block_seconds(matrix, n_components, folder) * n_weights / min(CHUNK, n_weights),
    )


def _block_seconds(matrix: WeightMatrix, n_components: int, folder: Path) -> float:
    """Measure how long the two passes take for the first block of columns."""
    n_snapshots, width = matrix.shape[0], min(CHUNK, matrix.layout.size)
    source, strips = np.empty((n_snapshots, width), np.float32), np.empty((n_snapshots, STRIP))
    rows, mean, made = (
        np.empty((n_components, width), np.float32),
        np.empty(width, np.float32),
        np.empty((n_components, STRIP)),
    )
    gram, row_gram = np.zeros((n_snapshots, n_snapshots)), np.zeros((n_components, n_components))
    coefficients = np.ones((n_components, n_snapshots))
    with (
        threadpool_limits(1, user_api="blas"),
        np.errstate(invalid="ignore", over="ignore"),
        tempfile.TemporaryFile(dir=folder, buffering=0) as file,
    ):
        reading = _seconds(lambda: matrix.read(0, source))
        hashing = _seconds(lambda: chunk_digests(source))
        multiplying = _seconds(lambda: add_products(gram, source, strips, centred=True))
        making = _seconds(lambda: make_rows(coefficients, source, (strips, made), rows, mean, row_gram, centred=True))
        hashing_rows = _seconds(lambda: chunk_digests(rows))
        writing = _seconds(lambda: file.write(rows.data)) + _seconds(lambda: os.fsync(file.fileno()))
    # A pass takes as long as the slowest of its threads, or as the arithmetic of all of them on the cores there are.
    passes = [(reading, hashing, multiplying), (writing, hashing_rows, making)]
    return sum(max(*each, sum(each[1:]) / (os.cpu_count() or 1)) for each in passes)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
