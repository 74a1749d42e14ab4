"""The two passes over the columns of the snapshots: the Gram matrix, then the rows of the basis.

Other threads read ahead, hash and write at the same time. The README has the time this saves, and the cost of float64.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dimred.checkpoints.layout import CHUNK, hash_columns
from dimred.checkpoints.matrix import BadSnapshotError, WeightMatrix
from dimred.checkpoints.stored_tensor import write_exactly
from dimred.io.atomic import flush_to_disk

STRIP = 16_384  # columns multiplied at once; they fit the cache, and a fixed width fixes the order of sums


def gram_pass(matrix: WeightMatrix, *, centred: bool = True) -> tuple[np.ndarray, list[str]]:
    """Compute the inner products of the snapshots about their mean (or about 0), and the digest of each snapshot.

    Args:
        matrix: the N snapshots.
        centred: whether to subtract the mean.

    Returns:
        The Gram matrix, float64 (N, N); and N digests, to compare with the manifest's.

    Raises:
        BadSnapshotError: a row holds an infinite number or NaN.
    """
    n_rows = matrix.shape[0]
    gram = np.zeros((n_rows, n_rows))
    buffer = np.empty((n_rows, STRIP))
    digests = [hashlib.sha256() for _ in range(n_rows)]
    for first, block in matrix.blocks(digests):
        with np.errstate(invalid="ignore", over="ignore"):  # checked below
            for _, strip, _ in _strips(block, buffer, centred):
                gram += strip @ strip.T
        if not np.isfinite(gram).all():
            raise _non_finite(matrix, block, first)
    return gram, [digest.hexdigest() for digest in digests]


def rows_pass(
    matrix: WeightMatrix, coefficients: np.ndarray, rows: BinaryIO, mean: BinaryIO, *, centred: bool = True
) -> tuple[np.ndarray, str]:
    """Write the rows ``coefficients @ (X - mean)`` (or ``@ X``) and the mean, as float32.

    Args:
        matrix: the snapshots X, (N, M).
        coefficients: float64 (k, N).
        rows: gets an ``.npy`` array (k, M); earlier content is overwritten.
        mean: gets the mean, float32 (M,), without a header.
        centred: whether to subtract the mean from the snapshots.

    Returns:
        P P' of the rows as written, float64 (k, k); and their digest.
    """
    (n_rows, n_columns) = matrix.shape
    n_components = len(coefficients)
    header = {"descr": "<f4", "fortran_order": False, "shape": (n_components, n_columns)}
    rows.seek(0)
    np.lib.format.write_array_header_1_0(rows, header)
    offset = rows.tell()
    row_gram = np.zeros((n_components, n_components))
    digest = hashlib.sha256()

    def write(first: int, block: np.ndarray, centre: np.ndarray) -> None:
        hash_columns(digest, block)
        for number, values in enumerate(block):
            write_exactly(rows.fileno(), values, offset + 4 * (number * n_columns + first))
        write_exactly(mean.fileno(), centre, 4 * first)
        # Flushed block by block, so that the end does not have to wait for all of it.
        flush_to_disk(rows.fileno(), Path(rows.name), is_growing=True)

    widest = min(CHUNK, n_columns)
    buffers = [(np.empty((n_components, widest), np.float32), np.empty(widest, np.float32)) for _ in range(2)]
    strips = np.empty((n_rows, STRIP)), np.empty((n_components, STRIP))
    with ThreadPoolExecutor(1, "writer") as writer:
        write_task = writer.submit(rows.flush)  # writes the header
        for number, (first, source) in enumerate(matrix.blocks()):
            block, centre = (array[..., : source.shape[1]] for array in buffers[number % 2])
            for columns, strip, strip_mean in _strips(source, strips[0], centred):
                centre[columns] = strip_mean
                product = strips[1][:, : strip.shape[1]]
                np.matmul(coefficients, strip, out=product)
                block[:, columns] = product
                product[:] = block[:, columns]  # the rounded values are what P P' is measured on
                row_gram += product @ product.T
            write_task.result()  # the next block reuses the buffer that this task writes
            write_task = writer.submit(write, first, block, centre)
        write_task.result()
    return row_gram, digest.hexdigest()


def _strips(block: np.ndarray, buffer: np.ndarray, centred: bool) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield a block (N, width) in strips that fit the cache, as (columns, values in float64, mean).

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
    """Return the error for the first number in a block that is not finite.

    There must be one: products of finite float32 numbers are finite in float64, but the Gram matrix is not finite.
    """
    row, column = np.argwhere(~np.isfinite(block))[0]
    layout = matrix.layout
    number = int(np.searchsorted(layout.offsets, first + column, side="right")) - 1
    entry = first + column - layout.offsets[number]
    where = f"in the parameter {layout.names[number]!r} (entry {entry})"
    return BadSnapshotError(int(row), f"{matrix.paths[row]} has a number that is not finite {where}.")
