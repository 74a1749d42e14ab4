"""The two passes over the columns, one block at a time: the Gram matrix, and the rows of the basis.

Prediction and measurement (2 cores, 60 snapshots, a million columns): float64 instead of float32 costs 0.15 s instead
of 0.10 s for the Gram matrix and 0.15 s instead of 0.08 s for the rows, less than reading (0.2 s at 1.2 GB/s) and
writing (0.4 s); so float64 it is, throughout. Strips of 16,384 columns fit the cache: 65,536 took a third longer.
Reading ahead and writing behind in threads: 2.6 s instead of 2.9 s for 40 snapshots of 4 M weights. Hashing beside the
arithmetic instead of before it: 5.4 s instead of 5.9 s for the first pass over 60 snapshots of 11.2 M on the disk.

BLAS works in one thread meanwhile (``job.py``): its second one, having nothing to do between two strips, spins in
``sched_yield`` on the core that reads, hashes and writes. For 36 snapshots of 11.2 M weights on 2 busy cores the whole
took 7.0 s of processor time instead of 11.5 s, of which the kernel's share was 1.2 s instead of 5.5 s.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dimred.errors import ConfigError
from dimred.files.digest import CHUNK
from dimred.subspace.scratch import Scratch
from dimred.subspace.write_behind import AHEAD, SAVE_EVERY, WriteBehind
from dimred.weights.matrix import WeightMatrix

__all__ = ["LOST", "Known", "NonFiniteError", "RowsResult", "block_width", "gram_pass", "rows_pass", "working_bytes"]

STRIP = 16_384  # columns multiplied at once; fixed, so that sums form in one order whatever the memory limit
_WIDEST = 4 * CHUNK  # columns in a block: a mebibyte of each file is long enough for the disk
LOST = 3 + 2 * SAVE_EVERY  # blocks that a kill can cost: read ahead, worked on, being written; written, not saved
Report = Callable[[int], None]  # is told how many columns are done


class NonFiniteError(Exception):
    """Row ``row`` of the matrix holds an infinite number or NaN at column ``column``."""

    def __init__(self, row: int, column: int) -> None:
        super().__init__(row, column)
        self.row, self.column = row, column


class Known(NamedTuple):
    """Rows of the matrix whose inner products are known from an earlier result.

    Attributes:
        rows: their numbers, in the order of ``gram``.
        gram: float64 (len(rows), len(rows)), about the mean of these rows.
    """

    rows: Sequence[int]
    gram: np.ndarray


class RowsResult(NamedTuple):
    """What was measured while the rows were written.

    Attributes:
        row_gram: float64 (k, k), P P' of the rows as written, in float32.
        digests: uint8 (chunks, 32), the SHA-256 of each chunk of columns.
    """

    row_gram: np.ndarray
    digests: np.ndarray


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
    matrix: WeightMatrix,
    width: int,
    scratch: Scratch,
    report: Report,
    *,
    centred: bool = True,
    known: Known | None = None,
    hashed: Sequence[int] = (),
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """All inner products (x_i - c) . (x_j - c) of the rows, float64 (N, N), and the rows' chunk digests.

    The origin c is the mean of the known rows, of all rows without such, or 0. Only products with a row that is not
    known are formed.

    Raises:
        NonFiniteError: a row holds an infinite number or NaN.
    """
    n_rows, n_columns = matrix.shape
    old = list(known.rows) if known else []
    new = [row for row in range(n_rows) if row not in set(old)]
    products = np.zeros((len(new), n_rows))
    digests = np.zeros((n_rows, -(-n_columns // CHUNK), 32), np.uint8)
    start = 0
    state = scratch.load()
    if state.get("phase") == "gram":
        start, products, digests = int(state["column"]), state["products"], state["digests"]
    report(start)
    saved, strip = start, np.empty((n_rows, STRIP))
    for first, block in matrix.blocks(width, start, digests):
        if first - saved >= SAVE_EVERY * width:  # all blocks before this one are multiplied, and hashed
            scratch.save(phase="gram", column=first, products=products, digests=digests)
            saved = first
        with np.errstate(invalid="ignore", over="ignore"):  # looked for below, block by block
            for column in range(0, block.shape[1], STRIP):
                part = strip[:, : min(STRIP, block.shape[1] - column)]
                np.copyto(part, block[:, column : column + STRIP])
                if centred:
                    part -= (part[old] if old else part).mean(axis=0)
                products += (part if not old else part[new]) @ part.T
        if not np.isfinite(products).all():
            raise NonFiniteError(*_first_non_finite(block, first))
        report(first + block.shape[1])
    gram = np.empty((n_rows, n_rows))
    if known:
        gram[np.ix_(old, old)] = known.gram
    gram[new] = products
    gram[:, new] = products.T
    return gram, {row: digests[row] for row in hashed}


def _first_non_finite(block: np.ndarray, first: int) -> tuple[int, int]:
    for row, values in enumerate(block):
        wrong = ~np.isfinite(values)
        if wrong.any():
            return row, first + int(wrong.argmax())
    raise AssertionError("finite float32 numbers have finite products in float64")


def rows_pass(
    matrix: WeightMatrix,
    width: int,
    coefficients: np.ndarray,
    scratch: Scratch,
    report: Report,
    *,
    centred: bool = True,
    keep: Mapping[str, np.ndarray] | None = None,
) -> RowsResult:
    """Write the rows ``coefficients @ (X - mean)`` (or ``@ X``) and the mean into the scratch folder, as float32.

    What was written is measured in the same pass.

    Args:
        coefficients: float64 (k, N).
        keep: arrays to be saved with the state, for a resumed run.
    """
    n_columns, n_components = matrix.shape[1], len(coefficients)
    multiply = _Multiplier(coefficients, centred)
    digests = np.zeros((-(-n_columns // CHUNK), 32), np.uint8)
    start = 0
    state = scratch.load()
    if state.get("phase") == "rows" and np.array_equal(state["coefficients"], coefficients):
        start, multiply.row_gram, digests = int(state["column"]), state["row_gram"], state["digests"]

    def save(done: int, row_gram: np.ndarray, digests: np.ndarray) -> None:
        known = {"column": done, "coefficients": coefficients, "row_gram": row_gram, "digests": digests}
        scratch.save(phase="rows", **known, **(keep or {}))

    if start == 0:
        save(0, multiply.row_gram, digests)
    report(start)
    widest = min(width, n_columns - start)
    buffers = [(np.empty((n_components, widest), np.float32), np.empty(widest, np.float32)) for _ in range(AHEAD)]
    with WriteBehind(scratch, (n_components, n_columns), start, digests, save, report) as behind:
        for number, (first, source) in enumerate(matrix.blocks(width, start) if start < n_columns else ()):
            behind.wait_for_buffer()
            block, mean = (buffer[..., : source.shape[1]] for buffer in buffers[number % AHEAD])
            multiply(source, block, mean)
            behind.put(first, block, mean, multiply.row_gram)
    return RowsResult(multiply.row_gram, digests)


class _Multiplier:
    """Forms the rows of a block, strip by strip, in buffers that are used again: fresh ones would cost page faults."""

    def __init__(self, coefficients: np.ndarray, centred: bool) -> None:
        n_components, n_rows = coefficients.shape
        self.coefficients, self.centred = coefficients, centred
        self.row_gram = np.zeros((n_components, n_components))
        self._snapshots = np.empty((n_rows, STRIP))
        self._rows = np.empty((n_components, STRIP))

    def __call__(self, source: np.ndarray, block: np.ndarray, mean: np.ndarray) -> None:
        """Write the rows into ``block`` and the mean into ``mean``, float32, and add to P P' what was written."""
        for column in range(0, source.shape[1], STRIP):
            columns = slice(column, min(column + STRIP, source.shape[1]))
            width = columns.stop - column
            snapshots, rows = self._snapshots[:, :width], self._rows[:, :width]
            np.copyto(snapshots, source[:, columns])
            centre = snapshots.mean(axis=0)
            mean[columns] = centre
            if self.centred:
                snapshots -= centre
            np.matmul(self.coefficients, snapshots, out=rows)
            block[:, columns] = rows
            rows[:] = block[:, columns]  # with the rounding to float32 in it
            self.row_gram += rows @ rows.T
