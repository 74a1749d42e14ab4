"""Weighted means of checkpoints, and their Gram matrix: streamed in blocks, in float64, no k x M matrix anywhere.

The threads work in parallel because NumPy's loops and the reads release the interpreter's lock. With blocks smaller
than 524,288 weights they wait for it too often. README.md has the figures.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from dimred.errors import CheckpointError
from dimred.merging.inputs import Checkpoint
from dimred.weights.stored_tensor import BFLOAT16, StoredTensor, write_exactly

BLOCK = 524_288
_PART = 4 * BLOCK
_LARGEST_FLOAT16 = float(np.finfo(np.float16).max)
_THREADS = min(4, len(os.sched_getaffinity(0)))


class Target(NamedTuple):
    """Where a mean is written: the descriptor of the file, and the tensor's place and type in it."""

    descriptor: int
    place: StoredTensor


class _Source(NamedTuple):
    """Where a tensor of one checkpoint is read."""

    descriptor: int
    checkpoint: Checkpoint
    place: StoredTensor


class _Part(NamedTuple):
    """Some entries of a tensor, in each checkpoint."""

    name: str
    sources: Sequence[_Source]
    start: int
    size: int


def write_means(checkpoints: Sequence[Checkpoint], coefficients: np.ndarray, targets: Mapping[str, Target]) -> None:
    """Write sum(c_i x_i) / sum(c_i) of each tensor in ``targets``, summed in order and in float64, rounded once.

    Of statistics, negative coefficients count as 0, so that a variance stays one. ``coefficients`` is float64 (N,).

    Raises:
        CheckpointError: a file changed, a weight is not finite, or a mean is too large for float16.
    """
    statistics = set(checkpoints[-1].statistics)
    chosen = [(checkpoint, c) for checkpoint, c in zip(checkpoints, coefficients, strict=True) if c != 0]
    used = np.array([c for _, c in chosen])

    def run(part: _Part) -> None:
        mean, target = _mean(part, np.maximum(used, 0) if part.name in statistics else used), targets[part.name]
        if target.place.dtype == np.float16 and max(mean.max(), -mean.min()) > _LARGEST_FLOAT16:
            raise CheckpointError(f"The mean of {part.name!r} has a number that is too large for float16")
        write_part(target, part.start, mean)

    for _ in _each_block([checkpoint for checkpoint, _ in chosen], tuple(targets), BLOCK, run):
        pass


def gram_matrix(checkpoints: Sequence[Checkpoint]) -> np.ndarray:
    """The inner products (x_i - mean) . (x_j - mean) over all weights, float64 (N, N); each file is read once.

    Raises:
        CheckpointError: a file changed, or a weight is not finite.
    """
    n = len(checkpoints)
    gram = np.zeros((n, n))
    width = max(4096, min(BLOCK, (32 << 20) // (8 * n)))

    def run(part: _Part) -> np.ndarray:
        rows = _buffer("rows", (n, width))[:, : part.size]
        for row, source in zip(rows, part.sources, strict=True):
            np.copyto(row, _load(source, part.start, part.size))
        rows -= rows.mean(axis=0)
        products = rows @ rows.T
        if not np.isfinite(products).all():
            raise _not_finite(part)
        return products

    with threadpool_limits(1, "blas"):
        for number in range(len(checkpoints[-1].files)):  # one after the other: descriptors are few
            names = set(checkpoints[-1].names_in(number)) & set(checkpoints[-1].layout.names)
            for products in _each_block(checkpoints, sorted(names), width, run):
                gram += sum(products)
    return gram


def _each_block(
    checkpoints: Sequence[Checkpoint], names: Sequence[str], width: int, run: Callable[[_Part], Any]
) -> Iterator[list[Any]]:
    """``run`` of every block of the tensors, in threads: lists of results, in order."""

    def run_blocks(part: _Part) -> list[Any]:
        end = part.start + part.size
        starts = range(part.start, end, width)
        return [run(part._replace(start=start, size=min(width, end - start))) for start in starts]

    with ExitStack() as opened, ThreadPoolExecutor(_THREADS, "merge") as pool:

        @cache
        def descriptor_of(number: int, file: int) -> int:
            return opened.enter_context(checkpoints[number].open(file)).fileno()

        parts = []
        for name in names:
            places = [(number, checkpoint, *checkpoint.tensors[name]) for number, checkpoint in enumerate(checkpoints)]
            sources = [_Source(descriptor_of(number, file), one, place) for number, one, file, place in places]
            size = math.prod(sources[0].place.shape)
            parts += [_Part(name, sources, start, min(_PART, size - start)) for start in range(0, size, _PART)]
        try:
            yield from pool.map(run_blocks, parts)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


_local = threading.local()


def _buffer(name: str, shape: int | tuple[int, int], dtype: Any = np.float64) -> np.ndarray:
    """Memory of this thread, used again: fresh memory would cost a page fault every 4 KiB."""
    kept = getattr(_local, name, None)
    if kept is None or kept.dtype != dtype or kept.shape != (shape if isinstance(shape, tuple) else (shape,)):
        kept = np.empty(shape, dtype)
        setattr(_local, name, kept)
    return kept


def _mean(part: _Part, coefficients: np.ndarray) -> np.ndarray:
    """sum(c_i x_i) / sum(c_i) of a part, float64, in a buffer."""
    total = _buffer("total", BLOCK)[: part.size]
    total[:] = 0
    with np.errstate(invalid="ignore", over="ignore"):  # looked for below
        for source, coefficient in zip(part.sources, coefficients, strict=True):
            values = _load(source, part.start, part.size)
            if coefficient == 1:
                total += values
            else:
                product = _buffer("product", BLOCK)[: part.size]
                total += np.multiply(values, coefficient, out=product, dtype=np.float64)
        divisor = sum(coefficients.tolist())
        if divisor != 1:
            total /= divisor
    if not np.isfinite(total).all():
        raise _not_finite(part)
    return total


def _load(source: _Source, start: int, count: int) -> np.ndarray:
    """Entries of a tensor as floats, in a buffer that the next call uses again."""
    place = source.place
    raw = _buffer("raw", 8 * BLOCK, np.uint8)[: count * place.storage.itemsize]
    place.read_bytes(source.descriptor, source.checkpoint.path, start * place.storage.itemsize, raw)
    values = raw.view(place.storage)
    if place.dtype != BFLOAT16:
        return values
    wide = _buffer("wide", BLOCK, np.uint32)[:count]
    return np.left_shift(values, 16, out=wide, dtype=np.uint32).view(np.float32)


def write_part(target: Target, start: int, values: np.ndarray) -> None:
    """Write float64 values, rounded once, as a tensor's entries from ``start`` on."""
    descriptor, place = target
    content, done = round_to(values, place.dtype).view(np.uint8), 0
    for offset, length in place.ranges(start * place.storage.itemsize, content.size):
        write_exactly(descriptor, content[done : done + length], offset)
        done += length


def round_to(values: np.ndarray, dtype: np.dtype | str) -> np.ndarray:
    """float64 values rounded once, to nearest and ties to even, to a type; bfloat16 as its bits (uint16)."""
    if isinstance(dtype, np.dtype):
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    bits = _buffer("bits", max(BLOCK, len(values)), np.uint32)[: len(values)]
    single, halves = bits.view(np.float32), bits.view("<u2")
    with np.errstate(over="ignore"):
        np.copyto(single, values, casting="same_kind")
    # Half of a last bit is added below, which is wrong where the float32 lies half way between two bfloat16. There the
    # float64 decides, which that float32 may have been rounded from; of two equally near ones the even one is taken.
    ties = np.flatnonzero(halves[::2] == 0x8000)
    exact, rounded = np.abs(values[ties]), np.abs(single[ties])
    bits[ties] -= (exact < rounded) | ((exact == rounded) & (bits[ties] & 0x10000 == 0))
    bits += 0x8000
    return np.ascontiguousarray(halves[1::2])


def _not_finite(part: _Part) -> CheckpointError:
    for source in part.sources:
        if not np.isfinite(_load(source, part.start, part.size)).all():
            path = source.checkpoint.path
            return CheckpointError(f"{path}: {part.name!r} holds an infinite number or NaN; leave it out")
    return CheckpointError(f"The combination is not finite in {part.name!r}; its coefficients are too large")
