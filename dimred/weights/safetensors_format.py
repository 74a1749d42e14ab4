"""The ``.safetensors`` format: eight bytes of header length, a JSON header, the raw bytes of all tensors."""

import json
import os
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from dimred.errors import CheckpointError, shown
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
_LARGEST_HEADER = 16 << 20  # bytes; 100,000 tensors with long names need less
_MARK = {"format": "ms"}  # what MindSpore writes into the metadata
# The CRC-32 of the whole file, with eight zeros in its own place.
_CRC_KEY, _CRC_BLANK = "dimred_crc32", "0" * 8
_CRC_PIECE = 1 << 20


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
        _check_places(index, size - 8 - header_bytes)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} has a damaged safetensors header ({type(error).__name__}: {error}). Save it again."
        ) from None
    return index, {name: text for name, text in texts.items() if name not in (*_MARK, _CRC_KEY)}


def _check_places(index: Mapping[str, StoredTensor], data_bytes: int) -> None:
    """The tensors share no byte: together they are not larger than the file."""
    total = sum(length for tensor in index.values() for _, length in tensor.pieces)
    if total > data_bytes:
        raise ValueError(f"its tensors overlap: they claim {total} of {data_bytes} bytes")


def check_safetensors_crc(file: BinaryIO, path: os.PathLike[str]) -> None:
    """Compare a ``.safetensors`` file, whose header was read without an error, with the checksum in its metadata.

    Raises:
        CheckpointError: they differ.
    """
    head = os.pread(file.fileno(), 8, 0)
    head += os.pread(file.fileno(), int.from_bytes(head, "little"), 8)
    texts = json.loads(head[8:]).get("__metadata__") or {}
    if _CRC_KEY not in texts:
        return
    before, _, after = head.partition(_crc_entry(texts[_CRC_KEY]))
    crc = zlib.crc32(before + _crc_entry(_CRC_BLANK) + after)
    position = len(head)
    while piece := os.pread(file.fileno(), _CRC_PIECE, position):
        crc = zlib.crc32(piece, crc)
        position += len(piece)
    if f"{crc:08x}" != texts[_CRC_KEY]:
        raise CheckpointError(
            f"{path} is damaged: it is not what was written, its checksum is another. Restore it, or save it again."
        )


def _crc_entry(text: str) -> bytes:
    return f'"{_CRC_KEY}":"{text}"'.encode("utf-8", "surrogatepass")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name appears twice")
    return result


def _tensor(path: os.PathLike[str], name: str, entry: Any, base: int, size: int) -> StoredTensor:
    shape, (start, end), type_name = entry["shape"], entry["data_offsets"], entry["dtype"]
    if type_name not in _TYPES:
        raise ValueError(f"the tensor {shown(name)} has the type {shown(type_name)}, which dimred can't read")
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in (*shape, start, end)) or end < start:
        raise ValueError(f"the tensor {shown(name)} has an impossible shape or place")
    if base + end > size:
        raise CheckpointError(
            f"{path} is truncated: the parameter {shown(name)} ends at byte {base + end}, the file at {size}. Save "
            "it again."
        )
    return tensor_of(path, name, tuple(shape), _TYPES[type_name], ((base + start, end - start),))


def write_safetensors(file: BinaryIO, values: Mapping[str, Any]) -> None:
    """Write ``values`` (name -> little-endian array, or text) in the ``.safetensors`` format; texts as
    metadata."""
    header: dict[str, Any] = {"__metadata__": {**_MARK, _CRC_KEY: _CRC_BLANK}}
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
    head = len(head).to_bytes(8, "little") + head
    contents = [array.reshape(-1).view(np.uint8).data for _, array in arrays]
    crc = zlib.crc32(head)
    for content in contents:
        crc = zlib.crc32(content, crc)
    file.write(head.replace(_crc_entry(_CRC_BLANK), _crc_entry(f"{crc:08x}"), 1))
    for content in contents:
        file.write(content)
