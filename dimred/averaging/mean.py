"""Compute the mean of checkpoints, sum(c_i x_i) / sum(c_i), block by block in float64, for files of any format.

The threads work in parallel because NumPy's loops and the reads release the GIL. With blocks of fewer than 524,288
weights they would wait for it too often (tests/benchmarks/merge_cost.md).
"""

import hashlib
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.checkpoints.checkpoint_io import Checkpoint, open_checkpoint
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.stored_tensor import BFLOAT16
from dimred.errors import CheckpointError
from dimred.io.system import n_processors

BLOCK = 524_288
_THREADS = min(4, n_processors())
Write = Callable[[str, int, np.ndarray], None]  # name of a tensor, number of the first entry, float64 values (n,)
_Terms = Sequence[tuple[Checkpoint, float]]  # the checkpoints that count, each with its coefficient


class _Block(NamedTuple):
    """Some entries of a tensor, which each checkpoint has."""

    name: str
    start: int
    size: int


def stream_mean(
    checkpoints: Sequence[Checkpoint],
    coefficients: np.ndarray,
    names: Iterable[str],
    write: Write,
    *,
    refuse_not_finite: bool = True,
) -> None:
    """Compute the mean of each tensor in blocks and hand these to ``write``, in any order and from several threads.

    Checkpoints are summed in order, so the result doesn't depend on threads or blocks.

    Args:
        checkpoints: N checkpoints of one network.
        coefficients: c, float64 (N,), at least 0 and not all 0.
        names: the tensors to average.
        write: takes a block of a mean; its array is overwritten by the next block.
        refuse_not_finite: whether to raise if a mean is not finite. A tensor that is equal in all checkpoints, such as
            an attention mask, is passed on unchanged instead.

    Raises:
        CheckpointError: a file can't be read, or a mean is not finite.
    """
    terms = [(checkpoint, float(c)) for checkpoint, c in zip(checkpoints, coefficients, strict=True) if c != 0]
    constant = cache(lambda name: is_constant(checkpoints, name))

    def run(block: _Block) -> None:
        mean = _mean(terms, block)
        if refuse_not_finite and not np.isfinite(mean).all():
            if not constant(block.name):
                raise _not_finite(terms, block)
            np.copyto(mean, _load(terms[-1][0], block))
        write(block.name, block.start, mean)

    blocks = []
    for name in names:
        size = math.prod(checkpoints[0].tensors[name].shape)
        blocks += [_Block(name, start, min(BLOCK, size - start)) for start in range(0, size, BLOCK)]
    with ThreadPoolExecutor(_THREADS, "mean") as pool:
        for _ in pool.map(run, blocks):  # an error cancels the blocks that have not begun
            pass


def open_fitting(paths: Iterable[Path], layout: WeightLayout) -> list[Checkpoint]:
    """Open checkpoint files, in the order given, and check that each holds the weights of ``layout``.

    Raises:
        CheckpointError: a file can't be read, or does not fit.
    """
    checkpoints = [Checkpoint.open(path) for path in paths]
    for checkpoint in checkpoints:
        checkpoint.check_fit(layout)
    return checkpoints


def mean_vector(checkpoints: Sequence[Checkpoint], coefficients: np.ndarray, layout: WeightLayout) -> np.ndarray:
    """Compute the mean of the weights of ``layout`` as one vector, float32 (M,), which need not be finite.

    Args:
        checkpoints, coefficients: as for ``stream_mean``; the checkpoints hold these weights.
        layout: the layout of the vector.

    Raises:
        CheckpointError: a file can't be read.
    """
    vector = np.empty(layout.size, np.float32)
    offsets = dict(zip(layout.names, layout.offsets, strict=True))

    def write(name: str, start: int, values: np.ndarray) -> None:
        first = offsets[name] + start
        with np.errstate(over="ignore"):
            vector[first : first + len(values)] = values

    stream_mean(checkpoints, coefficients, layout.names, write, refuse_not_finite=False)
    return vector


def is_constant(checkpoints: Sequence[Checkpoint], name: str) -> bool:
    """Return whether a tensor has the same bytes in all checkpoints; False if there is only one.

    Raises:
        CheckpointError: a file can't be read.
    """

    def digest(checkpoint: Checkpoint) -> bytes:
        tensor = checkpoint.tensors[name]
        sha = hashlib.sha256()
        with open_checkpoint(tensor.file) as file:
            for start in range(0, tensor.n_bytes, BLOCK):
                piece = np.empty(min(BLOCK, tensor.n_bytes - start), np.uint8)
                tensor.read_bytes(file.fileno(), start, piece)
                sha.update(piece.data)
        return sha.digest()

    if len(checkpoints) < 2:
        return False
    first = digest(checkpoints[0])
    return all(digest(checkpoint) == first for checkpoint in checkpoints[1:])


_local = threading.local()


def buffer(name: str, size: int, dtype: Any = np.float64) -> np.ndarray:
    """Return this thread's array called ``name``, (size,), which still has the values of its last use.

    It is allocated once, because fresh memory would cost a page fault every 4 KiB.
    """
    array = getattr(_local, name, None)
    if array is None or array.dtype != dtype or array.size != size:
        array = np.empty(size, dtype)
        setattr(_local, name, array)
    return array


def _mean(terms: _Terms, block: _Block) -> np.ndarray:
    """Compute sum(c_i x_i) / sum(c_i) of a block, float64 (n,), in a buffer."""
    total = buffer("total", BLOCK)[: block.size]
    with np.errstate(invalid="ignore", over="ignore"):  # the caller checks that the mean is finite
        for number, (checkpoint, coefficient) in enumerate(terms):
            values = _load(checkpoint, block)
            if number == 0:  # not added to 0, which would turn -0 into 0
                np.multiply(values, coefficient, out=total, dtype=np.float64)
            elif coefficient == 1:
                total += values
            else:
                product = buffer("product", BLOCK)[: block.size]
                total += np.multiply(values, coefficient, out=product, dtype=np.float64)
        divisor = sum(coefficient for _, coefficient in terms)
        if divisor != 1:
            total /= divisor
    return total


def _load(checkpoint: Checkpoint, block: _Block) -> np.ndarray:
    """Read a block of one checkpoint as floats, into a buffer that the next call overwrites.

    The file is open only during the call, because there may be more checkpoints than a process may have open files.
    """
    tensor = checkpoint.tensors[block.name]
    raw = buffer("raw", 8 * BLOCK, np.uint8)[: block.size * tensor.storage.itemsize]
    with open_checkpoint(tensor.file) as file:
        tensor.read_bytes(file.fileno(), block.start * tensor.storage.itemsize, raw)
    values = raw.view(tensor.storage)
    if tensor.dtype != BFLOAT16:
        return values
    wide = buffer("wide", BLOCK, np.uint32)[: block.size]
    return np.left_shift(values, 16, out=wide, dtype=np.uint32).view(np.float32)


def _not_finite(terms: _Terms, block: _Block) -> CheckpointError:
    for checkpoint, _ in terms:
        if not np.isfinite(_load(checkpoint, block)).all():
            return CheckpointError(f"{checkpoint.path}: {block.name!r} holds an infinite number or NaN; leave it out")
    return CheckpointError(f"The mean is not finite in {block.name!r}; its coefficients are too large")
