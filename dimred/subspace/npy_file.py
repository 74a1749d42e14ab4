"""A float32 ``.npy`` file written in blocks of columns, and read back without trusting it."""

import io
import os
import tokenize
from pathlib import Path
from types import TracebackType

import numpy as np

from dimred.errors import BasisMismatchError

__all__ = ["NpyRows", "open_npy"]

# What NumPy's reader of a header raises for one that is damaged; found by fuzzing it.
_HEADER_ERRORS = (
    ValueError, EOFError, AttributeError, SyntaxError, MemoryError, OverflowError, TypeError, KeyError, RecursionError,
    tokenize.TokenError,
)  # fmt: skip


class NpyRows:
    """Writes the columns of a C-ordered float32 array of ``shape`` (k, M) or (M,) in any order.

    Args:
        path: the file; it gets its full length at once, as a hole.
        resume: go on with an existing file instead of beginning a new one.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], *, resume: bool) -> None:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
        self._offset, self._n_columns = header.tell(), shape[-1]
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | (0 if resume else os.O_TRUNC), 0o666)
        if not resume:
            os.pwrite(self._descriptor, header.getvalue(), 0)
            os.ftruncate(self._descriptor, self._offset + 4 * int(np.prod(shape)))

    def __enter__(self) -> "NpyRows":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def write(self, first: int, block: np.ndarray) -> None:
        """Write ``block``, float32 (k, width) or (width,), to the columns from ``first`` on."""
        for row, values in enumerate(np.atleast_2d(block)):
            view = memoryview(values.view(np.uint8).data)
            offset = self._offset + 4 * (row * self._n_columns + first)
            while len(view):
                count = os.pwrite(self._descriptor, view, offset)
                view, offset = view[count:], offset + count

    def flush(self) -> None:
        """Wait until what was written is on the disk."""
        os.fdatasync(self._descriptor)


def open_npy(path: Path) -> np.ndarray:
    """The array in a ``.npy`` file, memory-mapped for reading; nothing is unpickled.

    Raises:
        BasisMismatchError: no such file, not a ``.npy`` file, truncated, or not two-dimensional float32 or float64.
    """
    try:
        array = np.lib.format.open_memmap(path, mode="r")
        expected = array.offset + array.nbytes
    except (OSError, *_HEADER_ERRORS) as error:
        raise BasisMismatchError(
            f"{path} is not a whole .npy file ({type(error).__name__}: {error}). Make it again with dimred pca."
        ) from None
    if array.ndim != 2 or array.dtype not in (np.dtype("<f4"), np.dtype("<f8")) or 0 in array.shape:
        raise BasisMismatchError(
            f"{path} holds {array.dtype} {array.shape}; a basis is float32 or float64 (components, weights)."
        )
    if path.stat().st_size != expected:
        raise BasisMismatchError(
            f"{path} has {path.stat().st_size} bytes; its header asks for {expected}. Make it again with dimred pca."
        )
    return array
