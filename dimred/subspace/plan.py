"""What a basis will cost, and which snapshots and how many directions are worth it, before anything is read in full."""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from dimred.errors import ConfigError, SeriesError
from dimred.subspace.gram_and_rows import STRIP, add_products, block_width, make_rows, working_bytes
from dimred.subspace.job import result_bytes
from dimred.weights.checkpoint_io import open_checkpoint
from dimred.weights.matrix import WeightMatrix

_SAMPLE_STRIPS, _SAMPLE_WIDTH = 256, 1_024
_PROBE_BYTES = 32 << 20
_MOST_TRIALS = 16  # snapshots left out, and first snapshots tried: each pair is one small eigenproblem
_NEAR = 1.05  # an error within 5 % of the least counts as the least


@dataclass(frozen=True)
class Advice:
    """What the spectrum suggests.

    Attributes:
        n_components: the knee: the least k whose leave-one-out error is within 5 % of the least.
        skip_first: how many early snapshots to leave out.
        errors: with 1, 2, ... directions, as a share of the spread about the mean, float64 (K,).
    """

    n_components: int
    skip_first: int
    errors: np.ndarray


@dataclass(frozen=True)
class Plan:
    """The cost of a basis.

    Attributes:
        n_snapshots, n_weights: N and M.
        read_bytes: the snapshots' weights; read twice, the second time mostly from the page cache.
        disk_bytes: the result while it is made.
        memory_bytes: the process's own, memory-mapped pages aside.
        seconds: from short probes of this disk and these cores; measured 1.0 to 2.5 times as long, because probes fit
            into caches, and threads slow each other down.
        advice: None with fewer than four snapshots.
    """

    n_snapshots: int
    n_weights: int
    read_bytes: int
    disk_bytes: int
    memory_bytes: int
    seconds: float
    advice: Advice | None


def make_plan(matrix: WeightMatrix, n_components: int, folder: Path, max_memory: int) -> Plan:
    """Estimate the cost of a basis with ``n_components`` rows in ``folder``; reads about a hundredth of a large series.

    Raises:
        ConfigError: there is no such folder, or not even the narrowest block fits into ``max_memory`` bytes.
    """
    if not folder.is_dir():
        raise ConfigError(f"--out lies in {str(folder)!r}, but there is no such folder; make it first.")
    n_snapshots, n_weights = matrix.shape
    width = min(block_width(n_snapshots, n_weights, n_components, max_memory), n_weights)
    read_bytes, rows_bytes = 4 * n_snapshots * n_weights, 4 * n_weights * n_components
    with threadpool_limits(1, user_api="blas"):
        strips = _strip_seconds(n_snapshots, n_components)
    reading, writing, hashing = _disk_and_hash_seconds(matrix, folder)
    # A pass takes as long as the slowest of its threads, or as the arithmetic of all of them on the cores there are.
    passes = [(read_bytes * reading, read_bytes * hashing), (rows_bytes * writing, rows_bytes * hashing)]
    busy = [(disk, hashed, n_weights / STRIP * each) for (disk, hashed), each in zip(passes, strips, strict=True)]
    return Plan(
        n_snapshots=n_snapshots,
        n_weights=n_weights,
        read_bytes=read_bytes,
        disk_bytes=result_bytes(n_weights, n_components),
        memory_bytes=working_bytes(n_snapshots, n_weights, n_components, width),
        seconds=sum(max(*each, sum(each[1:]) / (os.cpu_count() or 1)) for each in busy),
        advice=advise(sample_gram(matrix), n_components) if n_snapshots >= 4 else None,
    )


def _disk_and_hash_seconds(matrix: WeightMatrix, folder: Path) -> tuple[float, float, float]:
    """Seconds for a byte of reading a snapshot, of writing a file to the disk, of hashing."""
    data = bytes(_PROBE_BYTES)
    with open_checkpoint(matrix.paths[0]) as file:
        reading = _seconds(lambda: file.read(_PROBE_BYTES)) / min(_PROBE_BYTES, matrix.entries[0].bytes)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        writing = (_seconds(lambda: file.write(data)) + _seconds(lambda: os.fsync(file.fileno()))) / _PROBE_BYTES
    return reading, writing, _seconds(lambda: hashlib.sha256(data)) / _PROBE_BYTES


def _strip_seconds(n_snapshots: int, n_components: int) -> tuple[float, float]:
    """What the arithmetic of either pass takes for a strip of columns."""
    snapshots, strip = np.ones((n_snapshots, STRIP), np.float32), np.empty((n_snapshots, STRIP))
    coefficients, products = np.ones((n_components, n_snapshots)), np.empty((n_components, STRIP))
    gram, row_gram = np.zeros((n_snapshots, n_snapshots)), np.zeros((n_components, n_components))
    rows, mean = np.empty((n_components, STRIP), np.float32), np.empty(STRIP, np.float32)
    first = partial(add_products, gram, snapshots, strip, centred=True)
    second = partial(make_rows, coefficients, snapshots, (strip, products), rows, mean, row_gram, centred=True)
    return min(_seconds(first) for _ in range(6)), min(_seconds(second) for _ in range(6))


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return max(time.perf_counter() - started, 1e-6)


def sample_gram(matrix: WeightMatrix) -> np.ndarray:
    """The Gram matrix about the mean, float64 (N, N), estimated from evenly spread strips of columns.

    With M up to a quarter of a million all columns are read, and it is exact.
    """
    n_snapshots, n_weights = matrix.shape
    width = min(_SAMPLE_WIDTH, n_weights)
    n_strips = min(_SAMPLE_STRIPS, n_weights // width)
    starts = np.linspace(0, n_weights - width, n_strips).astype(int)
    if n_weights <= _SAMPLE_STRIPS * _SAMPLE_WIDTH:
        starts = np.arange(0, n_weights, width)
    gram, seen, buffer = np.zeros((n_snapshots, n_snapshots)), 0, np.empty((n_snapshots, width))
    for start in starts.tolist():
        part = np.empty((n_snapshots, min(width, n_weights - start)), np.float32)
        matrix.read(start, part)
        with np.errstate(invalid="ignore", over="ignore"):  # looked for below
            add_products(gram, part, buffer, centred=True)
        seen += part.shape[1]
    if not np.isfinite(gram).all():
        raise SeriesError(
            f"A snapshot in {matrix.directory} has numbers that are not finite; --skip-bad leaves it out."
        )
    return gram * (n_weights / seen)


def leave_one_out(gram: np.ndarray, left_out: int) -> tuple[float, np.ndarray]:
    """How well the other snapshots' principal directions reconstruct one that is left out.

    With z the left-out snapshot about the others' mean, and P_k their first k directions: |z|^2, and for
    k = 1, 2, ... the squared error |z - P_k' P_k z|^2. All from the Gram matrix.

    Args:
        gram: float64 (N, N), about any point.
        left_out: its row.
    """
    others = np.delete(np.arange(len(gram)), left_out)
    # About the others' mean: subtract the mean of the others' rows and columns, twice their mean is added back once.
    block = gram[np.ix_(others, others)]
    row = gram[left_out, others]
    means = block.mean(axis=0)
    centred = block - means - means[:, None] + means.mean()
    products = row - row.mean() - means + means.mean()
    distance = gram[left_out, left_out] - 2 * row.mean() + means.mean()
    values, vectors = np.linalg.eigh(centred)
    values, vectors = values[::-1], vectors[:, ::-1]
    usable = values > len(gram) * 1e-14 * max(values[0], 0.0)
    if not usable.any():  # the others are all equal
        return float(distance), np.array([distance])
    coordinates = (vectors[:, usable].T @ products) / np.sqrt(values[usable])
    return float(distance), np.maximum(distance - np.cumsum(coordinates**2), 0.0)


def advise(gram: np.ndarray, n_components: int) -> Advice:
    """Suggest the first snapshot to keep, then k, by leave-one-out reconstruction of the newest quarter.

    The first snapshot: the earliest of (up to 16) candidates from which on the error with ``n_components`` directions
    is within 5 % of the least. At least ``n_components`` + 2 snapshots and two more than the newest quarter are kept.
    Then k: the knee of the error over k.
    """
    n_snapshots = len(gram)
    newest = _spread(n_snapshots - max(n_snapshots // 4, 1), n_snapshots)
    starts = _spread(0, max(min(n_snapshots - n_components, newest[0]) - 2, 0) + 1)
    curves = [_mean_curve(gram, start, newest) for start in starts]
    errors = [curve[min(n_components, len(curve)) - 1] for curve in curves]
    best = next(number for number, error in enumerate(errors) if error <= _NEAR * min(errors))
    curve = curves[best]
    knee = int(np.argmax(curve <= _NEAR * curve.min())) + 1
    return Advice(knee, starts[best], curve)


def _spread(first: int, stop: int) -> list[int]:
    return sorted({int(value) for value in np.linspace(first, stop - 1, min(stop - first, _MOST_TRIALS))})


def _mean_curve(gram: np.ndarray, start: int, newest: list[int]) -> np.ndarray:
    window = gram[start:, start:]
    results = [leave_one_out(window, row - start) for row in newest]
    shortest = min(len(errors) for _, errors in results)
    spread = sum(distance for distance, _ in results) or 1.0
    return np.sum([errors[:shortest] for _, errors in results], axis=0) / spread
