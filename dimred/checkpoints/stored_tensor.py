"""One tensor of a checkpoint file: where its bytes are, and how to read them."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dimred.errors import CheckpointError, shown

# The number types of both formats, little-endian: f2 to f8, i1 to i8, u1 to u8.
NUMBERS = [np.dtype(f"<{kind}{size}") for kind in "fiu" for size in (1, 2, 4, 8) if (kind, size) != ("f", 1)]
BFLOAT16 = "bfloat16"  # NumPy has no such type: the upper half of a float32, read as two bytes
MOST_DIMENSIONS = 32  # NumPy 1's limit
TEXT = "text"  # MindSpore stores texts as UTF-32
MOST_BYTES_AT_ONCE = 1 << 30  # in one call of the system; macOS refuses 2 GiB


@dataclass(frozen=True)
class StoredTensor:
    """The place and type of a tensor in a file."""

    file: Path
    shape: tuple[int, ...]
    dtype: np.dtype | str  # its NumPy type; or BFLOAT16, or TEXT
    pieces: tuple[tuple[int, int], ...]  # where its bytes are, in order: (offset in the file, number of bytes)

    @property
    def storage(self) -> np.dtype:
        """Return the type in which the bytes are read."""
        if isinstance(self.dtype, np.dtype):
            return self.dtype
        return np.dtype("<u2" if self.dtype == BFLOAT16 else "<u4")

    @property
    def is_float(self) -> bool:
        return self.dtype == BFLOAT16 or (isinstance(self.dtype, np.dtype) and self.dtype.kind == "f")

    @property
    def is_integer(self) -> bool:
        return isinstance(self.dtype, np.dtype) and self.dtype.kind in "iub"

    @property
    def n_bytes(self) -> int:
        return sum(length for _, length in self.pieces)

    def read(self, descriptor: int) -> np.ndarray:
        """Read the tensor from its open file: bfloat16 as float32, a text as an array without dimensions.

        Raises:
            CheckpointError: the file is shorter than when its index was read.
        """
        raw = np.empty(self.n_bytes // self.storage.itemsize, self.storage)
        self.read_bytes(descriptor, 0, raw.view(np.uint8))
        if self.dtype == TEXT:
            return np.array(raw.tobytes().decode("utf-32-le", errors="replace").rstrip("\0"))
        return (_widened(raw) if self.dtype == BFLOAT16 else raw).reshape(self.shape)

    def read_part(self, descriptor: int, first: int, out: np.ndarray) -> None:
        """Fill ``out``, float32 or float64 (count,), with the entries from ``first`` on, in C order.

        Raises:
            CheckpointError: as for ``read``.
        """
        raw = out if self.storage == out.dtype else np.empty(out.size, self.storage)
        self.read_bytes(descriptor, first * self.storage.itemsize, raw.view(np.uint8))
        if raw is not out:
            with np.errstate(over="ignore"):
                out[:] = _widened(raw) if self.dtype == BFLOAT16 else raw

    def read_bytes(self, descriptor: int, first: int, out: np.ndarray) -> None:
        """Fill ``out``, uint8 (count,), with the tensor's bytes from byte ``first`` on.

        Raises:
            CheckpointError: as for ``read``.
        """
        position = 0
        for offset, length in self.ranges(first, out.size):
            read_exactly(descriptor, out[position : position + length], offset, self.file)
            position += length

    def ranges(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield the places of ``count`` of the tensor's bytes, from byte ``first`` on: (offset in the file, length)."""
        before = 0
        for offset, length in self.pieces:
            low = max(first, before)
            high = min(first + count, before + length)
            if low < high:
                yield offset + low - before, high - low
            before += length


def tensor_of(
    path: Path, name: str, shape: tuple[int, ...], dtype: Any, pieces: tuple[tuple[int, int], ...]
) -> StoredTensor:
    """Make a StoredTensor, and check that its shape and its number of bytes agree.

    Args:
        path: the file.
        name: the tensor's name, for the error.
        shape: its shape as the file gives it; MindSpore writes (0,) for a number without dimensions and for a text.
        dtype, pieces: as in ``StoredTensor``.

    Raises:
        CheckpointError: the shape and the number of bytes contradict each other.
    """
    if len(shape) > MOST_DIMENSIONS or any(length >> 63 for length in shape):
        raise CheckpointError(f"{path} is damaged: the parameter {shown(name)} has the shape {shown(shape)}.")
    tensor = StoredTensor(path, shape, dtype, pieces)
    itemsize = tensor.storage.itemsize
    if dtype == TEXT and tensor.n_bytes % itemsize == 0:
        return replace(tensor, shape=())
    if shape == (0,) and tensor.n_bytes == itemsize:  # MindSpore's way to write a number without dimensions
        return replace(tensor, shape=())
    if dtype == TEXT or math.prod(shape) * itemsize != tensor.n_bytes:
        raise CheckpointError(
            f"{path} is damaged: the parameter {shown(name)} of shape {shape} needs {math.prod(shape) * itemsize} bytes"
            f" but has {tensor.n_bytes}. Save it again."
        )
    return tensor


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError inside the block into a CheckpointError that names ``path``."""
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist.") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise CheckpointError(f"{path} can't be read: {why}.") from None


def unknown_type(path: str | os.PathLike[str], name: str, dtype: object) -> CheckpointError:
    """Return the error for a tensor of a type that NumPy doesn't have, such as fp8."""
    return CheckpointError(
        f"{path}: the tensor {shown(name)} has the type {shown(dtype)}, which can't be read or averaged; convert the "
        "checkpoint to bfloat16, float16 or float32"
    )


def read_exactly(descriptor: int, out: np.ndarray, offset: int, path: os.PathLike[str]) -> None:
    """Fill ``out`` (uint8) with the bytes of the file from ``offset`` on.

    A memory map is not used, because the process would be killed by a signal if the file shrank meanwhile; here that
    raises an error.

    Args:
        descriptor: the open file.
        out: uint8 (count,), contiguous.
        offset: the first byte to read.
        path: the file's path, for errors.

    Raises:
        CheckpointError: the file ends too early, or can't be read.
    """
    view = memoryview(out.data)
    while len(view):
        try:
            count = os.preadv(descriptor, [view[:MOST_BYTES_AT_ONCE]], offset)
        except OSError as error:
            raise CheckpointError(f"{path} can't be read at byte {offset}: {os.strerror(error.errno or 0)}.") from None
        if count == 0:
            raise CheckpointError(f"{path} ends at byte {offset}; it was cut while it was read. Save it again.")
        offset += count
        view = view[count:]


def write_exactly(descriptor: int, values: np.ndarray, offset: int) -> None:
    """Write all bytes of a contiguous array at byte ``offset``; one ``pwrite`` may write only some of them.

    Raises:
        OSError: the disk is full, or fails.
    """
    view = memoryview(values.view(np.uint8).data)
    while len(view):
        count = os.pwrite(descriptor, view[:MOST_BYTES_AT_ONCE], offset)
        view = view[count:]
        offset = offset + count


def _widened(bfloat16_bits: np.ndarray) -> np.ndarray:
    """Return the float32 values whose upper halves are ``bfloat16_bits`` (uint16)."""
    return (bfloat16_bits.astype(np.uint32) << 16).view(np.float32)
