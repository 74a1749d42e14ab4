"""The ``.safetensors`` format: eight bytes of header length, a JSON header, the raw bytes of all tensors."""

import json
import os
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from dimred.errors import CheckpointError
from dimred.weights.stored_tensor import BFLOAT16, StoredTensor, tensor_of

__all__ = ["read_safetensors_index", "write_safetensors"]

_TYPES: dict[str, np.dtype | str] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "F64": np.dtype("<f8"),
    "BF16": BFLOAT16,
    "BOOL": np.dtype("?"),
    "I8": np.dtype("<i1"),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "U8": np.dtype("<u1"),
    "U16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "U64": np.dtype("<u8"),
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_LARGEST_HEADER = 100_000_000  # bytes; the format's own limit
_MARK = {"format": "ms"}  # what MindSpore writes into the metadata


def read_safetensors_index(file: BinaryIO, path: os.PathLike[str]) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Where each tensor stands (name -> StoredTensor), and the texts of the metadata.

    Raises:
        CheckpointError: the file is truncated, its header damaged or oversized, or a tensor lies outside the
            file.
    """
    size = os.fstat(file.fileno()).st_size
    header_bytes = int.from_bytes(os.pread(file.fileno(), 8, 0), "little") if size >= 8 else 0
    if size < 8 or header_bytes > min(size - 8, _LARGEST_HEADER):
        raise CheckpointError(
            f"{path} is not a whole safetensors file: its header claims {header_bytes} bytes, the file has {size}. It "
            "may be truncated, damaged, or of another kind; save it again."
        )
    try:
        header = json.loads(os.pread(file.fileno(), header_bytes, 8), object_pairs_hook=_unique)
        texts = header.pop("__metadata__", None) or {}
        index = {name: _tensor(path, name, entry, 8 + header_bytes, size) for name, entry in header.items()}
        if not all(isinstance(text, str) for text in texts.values()):
            raise TypeError("a metadata entry is not a text")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} has a damaged safetensors header ({type(error).__name__}: {error}). Save it again."
        ) from None
    return index, {name: text for name, text in texts.items() if name not in _MARK}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name appears twice")
    return result


def _tensor(path: os.PathLike[str], name: str, entry: Any, base: int, size: int) -> StoredTensor:
    shape, (start, end), type_name = entry["shape"], entry["data_offsets"], entry["dtype"]
    if type_name not in _TYPES:
        raise ValueError(f"the tensor {name!r} has the type {type_name!r}, which dimred can't read")
    if not all(isinstance(n, int) and n >= 0 for n in (*shape, start, end)) or end < start:
        raise ValueError(f"the tensor {name!r} has an impossible shape or place")
    if base + end > size:
        raise CheckpointError(
            f"{path} is truncated: the parameter {name!r} ends at byte {base + end}, the file at {size}. Save it again."
        )
    return tensor_of(path, name, tuple(shape), _TYPES[type_name], ((base + start, end - start),))


def write_safetensors(file: BinaryIO, values: Mapping[str, Any]) -> None:
    """Write ``values`` (name -> little-endian array, or text) in the ``.safetensors`` format; texts as
    metadata."""
    header: dict[str, Any] = {"__metadata__": dict(_MARK)}
    position = 0
    # The widest types first, as the format's own writer does: so every tensor is aligned.
    arrays = sorted(
        ((name, value) for name, value in values.items() if isinstance(value, np.ndarray)),
        key=lambda item: -item[1].dtype.itemsize,
    )
    for name, value in values.items():
        if isinstance(value, str):
            header["__metadata__"][name] = value
    for name, array in arrays:
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    file.write(len(head).to_bytes(8, "little") + head)
    for _, array in arrays:
        file.write(array.reshape(-1).view(np.uint8).data)
