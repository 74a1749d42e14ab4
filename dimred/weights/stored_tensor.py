"""Where one tensor stands in a checkpoint file, and how its bytes become numbers."""

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from dimred.errors import CheckpointError, shown

__all__ = ["BFLOAT16", "MOST_DIMENSIONS", "TEXT", "StoredTensor", "read_exactly", "tensor_of", "to_float32"]

BFLOAT16 = "bfloat16"  # NumPy has no such type: the upper half of a float32, read as two bytes
MOST_DIMENSIONS = 32  # NumPy 1's limit
TEXT = "text"  # MindSpore stores texts as UTF-32


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its shape, its type, and the (offset, bytes) of its pieces in order."""

    shape: tuple[int, ...]
    dtype: np.dtype | str
    pieces: tuple[tuple[int, int], ...]

    @property
    def storage(self) -> np.dtype:
        """The type in which the bytes are read."""
        if isinstance(self.dtype, np.dtype):
            return self.dtype
        return np.dtype("<u2" if self.dtype == BFLOAT16 else "<u4")

    @property
    def is_float(self) -> bool:
        return self.dtype == BFLOAT16 or (isinstance(self.dtype, np.dtype) and self.dtype.kind == "f")

    def read(self, descriptor: int, path: os.PathLike[str]) -> np.ndarray:
        """The tensor's values (bfloat16 as float32; a text as an array without dimensions).

        Raises:
            CheckpointError: the file is shorter than when its index was read.
        """
        raw = np.empty(sum(length for _, length in self.pieces), np.uint8)
        start = 0
        for offset, length in self.pieces:
            read_exactly(descriptor, raw[start : start + length], offset, path)
            start += length
        values = raw.view(self.storage)
        if self.dtype == TEXT:
            return np.array(raw.tobytes().decode("utf-32-le", errors="replace").rstrip("\0"))
        return (to_float32(values) if self.dtype == BFLOAT16 else values).reshape(self.shape)


def tensor_of(
    path: os.PathLike[str], name: str, shape: tuple[int, ...], dtype: Any, pieces: tuple[tuple[int, int], ...]
) -> StoredTensor:
    """A StoredTensor whose shape and bytes agree.

    Raises:
        CheckpointError: they contradict each other.
    """
    if len(shape) > MOST_DIMENSIONS or any(length >> 63 for length in shape):
        raise CheckpointError(f"{path} is damaged: the parameter {shown(name)} has the shape {shown(shape)}.")
    total = sum(length for _, length in pieces)
    tensor = StoredTensor(shape, dtype, pieces)
    itemsize = tensor.storage.itemsize
    if dtype == TEXT:
        fits = total % itemsize == 0
        tensor = StoredTensor((), dtype, pieces)
    elif shape == (0,) and total == itemsize:
        fits = True  # MindSpore's way to write a number without dimensions
        tensor = StoredTensor((), dtype, pieces)
    else:
        fits = math.prod(shape) * itemsize == total
    if not fits:
        raise CheckpointError(
            f"{path} is damaged: the parameter {shown(name)} of shape {shape} needs {math.prod(shape) * itemsize} bytes"
            f" and has {total}. Save it again."
        )
    return tensor


def read_exactly(descriptor: int, out: np.ndarray, offset: int, path: os.PathLike[str]) -> None:
    """Fill ``out`` (uint8) with the bytes of the file from ``offset`` on.

    ``pread`` rather than a memory map: a file that shrinks meanwhile gives an error here, and a signal there.

    Raises:
        CheckpointError: the file ends too early.
    """
    view = memoryview(out.data)
    while len(view):
        count = os.preadv(descriptor, [view], offset)
        if count == 0:
            raise CheckpointError(f"{path} ends at byte {offset}; it was cut while it was read. Save it again.")
        offset += count
        view = view[count:]


def to_float32(bfloat16_bits: np.ndarray) -> np.ndarray:
    """The float32 values whose upper halves are ``bfloat16_bits`` (uint16)."""
    return (bfloat16_bits.astype(np.uint32) << 16).view(np.float32)
