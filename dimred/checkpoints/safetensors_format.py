"""The ``.safetensors`` format: eight bytes of header length, a JSON header, the raw bytes of all tensors.

The ``safetensors`` library decides whether a header is valid, but does not give the offsets that streaming needs; they
are read from the header here. Files are written here too: the library's ``serialize`` doubles the memory, and its
``save_file`` writes to its own temporary file and hides the system's error numbers.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open

from dimred.checkpoints.stored_tensor import BFLOAT16, NUMBERS, StoredTensor, tensor_of, unknown_type
from dimred.errors import CheckpointError

_TYPES: dict[str, np.dtype | str] = {"BOOL": np.dtype("?"), "BF16": BFLOAT16}
_TYPES |= {f"{dtype.kind.upper()}{8 * dtype.itemsize}": dtype for dtype in NUMBERS}  # F32, I64, U8, ...
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_MARK = {"format": "ms"}  # MindSpore writes this into the metadata


def read_safetensors_index(file: BinaryIO, path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Locate the tensors of a ``.safetensors`` file, and read its metadata.

    Args:
        file: the file, open for reading.
        path: its path.

    Returns:
        Name -> place of each tensor, in the order of the header; and name -> text of the metadata, without ``format``.

    Raises:
        CheckpointError: the file is truncated, its header is damaged, or a tensor has a type that dimred can't read.
    """
    try:
        with safe_open(path, framework="numpy"):
            pass
        base = 8 + int.from_bytes(os.pread(file.fileno(), 8, 0), "little")
        header = json.loads(os.pread(file.fileno(), base - 8, 8), object_pairs_hook=_unique)
        texts = header.pop("__metadata__", None) or {}
        index = {name: _tensor(path, name, entry, base) for name, entry in header.items()}
    except (SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not a whole safetensors file ({str(error)[:200]}). It may be truncated, damaged, or of another "
            "kind; save it again."
        ) from None
    return index, {name: text for name, text in texts.items() if name != "format"}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):  # the library accepts repeated names
        raise ValueError("a name appears twice")
    return result


def _tensor(path: Path, name: str, entry: Any, base: int) -> StoredTensor:
    start, end = entry["data_offsets"]
    if entry["dtype"] not in _TYPES:
        raise unknown_type(path, name, entry["dtype"])
    return tensor_of(path, name, tuple(entry["shape"]), _TYPES[entry["dtype"]], ((base + start, end - start),))


def write_safetensors(file: BinaryIO, values: Mapping[str, Any]) -> None:
    """Write ``values`` (name -> little-endian array, or text) in the ``.safetensors`` format; texts become metadata."""
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    types = {name: (value.dtype, value.shape) for name, value in arrays.items()}
    header, index = safetensors_header(Path(file.name), types, _MARK | texts)
    file.write(header)
    for name in index:
        file.write(arrays[name].reshape(-1).view(np.uint8).data)


def safetensors_header(
    path: Path, types: Mapping[str, tuple[np.dtype | str, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, StoredTensor]]:
    """Make the header: everything in a file before the values.

    Args:
        path: the file to be written.
        types: name -> (type, shape) of each tensor.
        metadata: name -> text.

    Returns:
        The bytes; and name -> place of each tensor, in the file's order.
    """
    empty = {name: StoredTensor(path, shape, dtype, ()) for name, (dtype, shape) in types.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    spans: dict[str, tuple[int, int]] = {}
    position = 0
    # The widest types first, like the format's own writer, so that every tensor is aligned.
    for name in sorted(empty, key=lambda name: -empty[name].storage.itemsize):
        size = math.prod(empty[name].shape) * empty[name].storage.itemsize
        offsets = [position, position + size]
        header[name] = {"dtype": _NAMES[types[name][0]], "shape": list(empty[name].shape), "data_offsets": offsets}
        spans[name] = (position, size)
        position += size
    head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    base = 8 + len(head)
    index = {name: replace(empty[name], pieces=((base + start, size),)) for name, (start, size) in spans.items()}
    return len(head).to_bytes(8, "little") + head, index
