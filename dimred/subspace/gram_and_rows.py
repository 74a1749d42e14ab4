"""The two passes over the columns, one block at a time: the Gram matrix, then the rows of the basis.

The arithmetic has a thread of its own; beside it blocks are read ahead, hashed, written, and flushed to the disk. The
README says what that gains, and what float64 costs. A block ends where a chunk of the digest ends, so that a pass can
stop, be stored, and go on.
"""

import io
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np

from dimred.errors import ConfigError
from dimred.files.digest import CHUNK, chunk_digests
from dimred.subspace.scratch import Scratch
from dimred.weights.matrix import WeightMatrix
from dimred.weights.stored_tensor import write_exactly

STRIP = 16_384  # columns multiplied at once, which fit the cache; fixed, so that sums form in one order
_WIDEST = 4 * CHUNK  # columns in a block: a mebibyte of each file is long enough for the disk
_AHEAD = 2  # blocks of rows that may be waiting or being written
SAVE_EVERY = 2  # blocks from one saved state to the next; as many may be written while the state is being saved
LOST = 3 + 2 * SAVE_EVERY  # blocks that a kill can cost: read ahead, worked on, being written; written, but not saved
# Is told the phase ("reading snapshots", "writing basis"), the columns done, and the columns in all.
Progress = Callable[[str, int, int], None]


class BadSnapshotError(Exception):
    """Row ``row`` of the matrix can't be used, for ``reason``."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row, self.reason = row, reason


def working_bytes(n_rows: int, n_columns: int, n_components: int, width: int) -> int:
    """The memory that the passes take with blocks of ``width`` columns, the libraries' own buffers included."""
    blocks = 4 * 2 * (n_rows + n_components + 1) * width  # two being read, two being written, and their means
    strips = 8 * STRIP * (3 * n_rows + 2 * n_components + 2)
    digests = 4 * 32 * (n_rows + 1) * (n_columns // CHUNK + 1)  # the arrays, and copies while they are saved
    return blocks + strips + digests + 8 * 6 * n_rows**2 + (64 << 20)


def block_width(n_rows: int, n_columns: int, n_components: int, max_memory: int) -> int:
    """The columns in a block, a multiple of ``CHUNK``, with which the passes stay within ``max_memory`` bytes.

    ``LOST`` blocks are no more than the reading of one snapshot, M / N columns, or ``LOST`` chunks where that is less.

    Raises:
        ConfigError: not even the narrowest block fits.
    """
    least = working_bytes(n_rows, n_columns, n_components, CHUNK)
    if least > max_memory:
        raise ConfigError(
            f"max_memory leaves {max_memory / 1e6:.0f} MB; {n_rows} snapshots of {n_columns:,} weights need "
            f"{least / 1e6:.0f} MB. Give at least {(least - max_memory) / 1e6:.0f} MB more, or select fewer snapshots."
        )
    each = working_bytes(n_rows, n_columns, n_components, 2 * CHUNK) - least
    affordable = min(1 + (max_memory - least) // each, n_columns // n_rows // LOST // CHUNK)
    return min(_WIDEST, max(affordable, 1) * CHUNK)


def gram_pass(
    matrix: WeightMatrix, width: int, scratch: Scratch, progress: Progress, *, centred: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The inner products of the snapshots about their mean (or about 0), and the digests of their chunks.

    Returns:
        float64 (N, N), and uint8 (N, chunks, 32).

    Raises:
        BadSnapshotError: a row holds an infinite number or NaN.
    """
    n_rows, n_columns = matrix.shape
    gram, start = np.zeros((n_rows, n_rows)), 0
    digests = np.zeros((n_rows, -(-n_columns // CHUNK), 32), np.uint8)
    state = scratch.load()
    if state.get("phase") == "gram":
        start, gram, digests = int(state["column"]), state["gram"], state["digests"]
    progress("reading snapshots", start, n_columns)
    saved, buffer = start, np.empty((n_rows, STRIP))
    for first, block in matrix.blocks(width, start, digests):
        if first - saved >= SAVE_EVERY * width:  # all blocks before this one are multiplied, and hashed
            scratch.save("gram", column=first, gram=gram, digests=digests)
            saved = first
        with np.errstate(invalid="ignore", over="ignore"):  # looked for below, block by block
            add_products(gram, block, buffer, centred=centred)
        if not np.isfinite(gram).all():
            raise _non_finite(matrix, block, first)
        progress("reading snapshots", first + block.shape[1], n_columns)
    return gram, digests


def add_products(gram: np.ndarray, block: np.ndarray, buffer: np.ndarray, *, centred: bool) -> None:
    """Add the inner products of a block's rows to ``gram``; for the arguments see ``_strips``."""
    for _, strip, _ in _strips(block, buffer, centred):
        gram += strip @ strip.T


def make_rows(
    coefficients: np.ndarray,
    source: np.ndarray,
    buffers: tuple[np.ndarray, np.ndarray],
    block: np.ndarray,
    mean: np.ndarray,
    row_gram: np.ndarray,
    *,
    centred: bool,
) -> None:
    """Make a block's columns of the basis, and their mean; add the products of what was made to P P'.

    Args:
        coefficients: float64 (k, N).
        source: float32 (N, width), the snapshots.
        buffers: float64 (N, STRIP) and (k, STRIP).
        block, mean: float32 (k, width) and (width,), filled.
        row_gram: float64 (k, k), added to.
        centred: subtract the mean from the snapshots.
    """
    for columns, strip, centre in _strips(source, buffers[0], centred):
        mean[columns] = centre
        made = buffers[1][:, : strip.shape[1]]
        np.matmul(coefficients, strip, out=made)
        block[:, columns] = made
        made[:] = block[:, columns]  # with the rounding to float32 in it
        row_gram += made @ made.T


def _strips(block: np.ndarray, buffer: np.ndarray, centred: bool) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """A block (N, width) in strips of columns that fit the cache: which columns, their values in float64, their mean.

    All strips share ``buffer``, float64 (N, STRIP): a fresh array each time would cost page faults.
    """
    for first in range(0, block.shape[1], STRIP):
        columns = slice(first, min(first + STRIP, block.shape[1]))
        strip = buffer[:, : columns.stop - first]
        np.copyto(strip, block[:, columns])
        mean = strip.mean(axis=0)
        if centred:
            strip -= mean
        yield columns, strip, mean


def _non_finite(matrix: WeightMatrix, block: np.ndarray, first: int) -> BadSnapshotError:
    """The first number that is not finite; finite float32 numbers have finite products in float64, so there is one."""
    row, column = np.argwhere(~np.isfinite(block))[0]
    layout = matrix.layout
    number = int(np.searchsorted(layout.offsets, first + column, side="right")) - 1
    place = first + column - layout.offsets[number]
    where = f"in the parameter {layout.names[number]!r} (entry {place})"
    return BadSnapshotError(int(row), f"{matrix.paths[row]} has a number that is not finite {where}.")


def rows_pass(
    matrix: WeightMatrix,
    width: int,
    coefficients: np.ndarray,
    scratch: Scratch,
    progress: Progress,
    *,
    centred: bool = True,
    keep: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Write the rows ``coefficients @ (X - mean)`` (or ``@ X``) and the mean into the scratch folder, as float32.

    Args:
        coefficients: float64 (k, N).
        keep: arrays to be saved with the state, for a resumed run.

    Returns:
        P P' of the rows as written, float64 (k, k); and the SHA-256 of each chunk of columns, uint8 (chunks, 32).
    """
    (n_rows, n_columns), n_components = matrix.shape, len(coefficients)
    row_gram, start = np.zeros((n_components, n_components)), 0
    digests = np.zeros((-(-n_columns // CHUNK), 32), np.uint8)
    state = scratch.load()
    if state.get("phase") == "rows" and np.array_equal(state["coefficients"], coefficients):
        start, row_gram, digests = int(state["column"]), state["row_gram"], state["digests"]

    def save(done: int, row_gram: np.ndarray, digests: np.ndarray) -> None:
        """Flush the data, then save the state that describes them."""
        rows.flush()
        means.flush()
        scratch.save("rows", column=done, coefficients=coefficients, row_gram=row_gram, digests=digests, **keep)

    widest = min(width, n_columns - start)
    buffers = [(np.empty((n_components, widest), np.float32), np.empty(widest, np.float32)) for _ in range(_AHEAD)]
    strips = np.empty((n_rows, STRIP)), np.empty((n_components, STRIP))
    pending: list[Future[None]] = []
    with (
        closing(NpyColumns(scratch.components, (n_components, n_columns), resume=start > 0)) as rows,
        closing(NpyColumns(scratch.mean, (n_columns,), resume=start > 0)) as means,
        ThreadPoolExecutor(1, "flush") as flusher,
        ThreadPoolExecutor(1, "writer") as writer,
    ):
        saved, saving = start, flusher.submit(save, start, row_gram, digests)
        saving.result()

        def write(first: int, block: np.ndarray, mean: np.ndarray, row_gram: np.ndarray) -> None:
            nonlocal saved, saving
            found = chunk_digests(block)
            digests[first // CHUNK :][: len(found)] = found
            rows.write(first, block)
            means.write(first, mean)
            done = first + mean.size
            if done - saved >= SAVE_EVERY * width or done == n_columns:
                saving.result()
                saving = flusher.submit(save, done, row_gram, digests.copy())
                saved = done
            progress("writing basis", done, n_columns)

        progress("writing basis", start, n_columns)
        for number, (first, source) in enumerate(matrix.blocks(width, start)):
            if len(pending) == _AHEAD:
                pending.pop(0).result()  # its buffer is filled again below
            block, mean = (array[..., : source.shape[1]] for array in buffers[number % _AHEAD])
            make_rows(coefficients, source, strips, block, mean, row_gram, centred=centred)
            pending.append(writer.submit(write, first, block, mean, row_gram.copy()))
        for last in pending:
            last.result()
        saving.result()
    return row_gram, digests


class NpyColumns:
    """Writes the columns of a C-ordered float32 ``.npy`` array of ``shape`` (k, M) or (M,), in any order.

    The file gets its full length at once, as a hole; with ``resume`` an existing one is continued.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], *, resume: bool) -> None:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        self._offset, self._n_columns = header.tell(), shape[-1]
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | (0 if resume else os.O_TRUNC), 0o666)
        if not resume:
            os.pwrite(self._descriptor, header.getvalue(), 0)
            os.ftruncate(self._descriptor, self._offset + 4 * int(np.prod(shape)))

    def write(self, first: int, block: np.ndarray) -> None:
        """Write ``block``, float32 (k, width) or (width,), to the columns from ``first`` on."""
        for row, values in enumerate(np.atleast_2d(block)):
            write_exactly(self._descriptor, values, self._offset + 4 * (row * self._n_columns + first))

    def flush(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
