"""The only door to checkpoint files: MindSpore's ``.ckpt`` and ``.safetensors``.

MindSpore is not needed for either: nothing is unpickled, sizes are checked before memory is taken, no other
file is touched, and what is written can be read with ``mindspore.load_checkpoint``.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dimred.errors import CheckpointError, ConfigError, shown
from dimred.files.atomic import open_atomic
from dimred.weights.ckpt_format import check_ckpt_crc, read_ckpt_index, write_ckpt
from dimred.weights.layout import as_array
from dimred.weights.safetensors_format import check_safetensors_crc, read_safetensors_index, write_safetensors
from dimred.weights.stored_tensor import StoredTensor

__all__ = ["SUFFIXES", "check_checksum", "open_checkpoint", "read_checkpoint", "read_index", "write_checkpoint"]

SUFFIXES = (".ckpt", ".safetensors")


def read_checkpoint(path: str | os.PathLike[str], names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Read the tensors of a checkpoint: name -> array, in the file's order, after comparing it with its checksum.

    Numbers are arrays without dimensions, texts too (``.item()`` gives the Python value); bfloat16 becomes
    float32.

    Args:
        path: a ``.ckpt`` or ``.safetensors`` file.
        names: only these, in this order; default all.

    Raises:
        CheckpointError: the file is missing, truncated, damaged, of another kind, or lacks one of ``names``.
    """
    source = Path(path)
    with open_checkpoint(source) as file:
        index, texts = _index_of(file, source)
        _check_crc(file, source)
        wanted = [*index, *texts] if names is None else list(names)
        values = {}
        for name in wanted:
            if name in index:
                values[name] = index[name].read(file.fileno(), source)
            elif name in texts:
                values[name] = np.array(texts[name])
            else:
                raise CheckpointError(f"{source} has no parameter {shown(name)}; it has {_some(index)}.")
        return values


def read_index(path: str | os.PathLike[str]) -> dict[str, StoredTensor]:
    """Where each tensor of a checkpoint stands, without reading the values: name -> StoredTensor.

    Raises:
        CheckpointError: as ``read_checkpoint``.
    """
    with open_checkpoint(path) as file:
        return _index_of(file, Path(path))[0]


def check_checksum(path: str | os.PathLike[str]) -> None:
    """Compare a checkpoint with the checksum it carries, by reading all of it.

    Raises:
        CheckpointError: as ``read_checkpoint``, or they differ.
    """
    with open_checkpoint(path) as file:
        _index_of(file, Path(path))
        _check_crc(file, Path(path))


def _check_crc(file: BinaryIO, path: Path) -> None:
    (check_safetensors_crc if path.suffix == ".safetensors" else check_ckpt_crc)(file, path)


def open_checkpoint(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a checkpoint file for reading.

    Raises:
        CheckpointError: there is no such file, or it can't be opened.
    """
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror or error}.") from None


def _index_of(file: BinaryIO, path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    if path.suffix not in SUFFIXES:
        raise CheckpointError(f"{path} is not a checkpoint: its name must end in {' or '.join(SUFFIXES)}.")
    if os.fstat(file.fileno()).st_size == 0:
        raise CheckpointError(f"{path} is empty. Save it again.")
    index, texts = read_safetensors_index(file, path) if path.suffix == ".safetensors" else (None, {})
    return (read_ckpt_index(file, path) if index is None else index), texts


def write_checkpoint(
    path: str | os.PathLike[str],
    weights: Mapping[str, Any],
    extra: Mapping[str, int | float | str | np.ndarray] | None = None,
) -> None:
    """Write a checkpoint, whole or not at all: a temporary file in the same folder, flushed, then renamed.

    Args:
        path: ends in ``.ckpt`` or ``.safetensors``; an existing file is replaced.
        weights: name -> array, tensor or parameter.
        extra: numbers, texts and arrays beside the weights, such as the epoch.

    Raises:
        ConfigError: the path has another ending, a name is in both, or a value has a type that can't be
            stored.
        OSError: the folder does not exist, is not writable, or is full.
    """
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise ConfigError(f"path is {str(target)!r}; a checkpoint's name must end in {' or '.join(SUFFIXES)}.")
    values: dict[str, np.ndarray | str] = {name: _storable(name, as_array(v)) for name, v in weights.items()}
    for name, value in (extra or {}).items():
        if name in values:
            raise ConfigError(f"extra has the name {name!r}, which is also a weight; rename it.")
        values[name] = value if isinstance(value, str) else _storable(name, np.asarray(value))
    if not any(isinstance(value, np.ndarray) for value in values.values()):
        raise ConfigError("weights is empty; a checkpoint needs at least one array.")
    with open_atomic(target) as file:
        (write_safetensors if target.suffix == ".safetensors" else write_ckpt)(file, values)


def _storable(name: str, value: np.ndarray) -> np.ndarray:
    if value.dtype.kind not in "fiub" or value.dtype.itemsize > 8:
        raise ConfigError(
            f"{name!r} has the type {value.dtype}; a checkpoint stores numbers of up to 64 bits, bool and texts."
        )
    return np.asarray(value, value.dtype.newbyteorder("<"), order="C")


def _some(index: Mapping[str, StoredTensor]) -> str:
    first = ", ".join(shown(name) for name in list(index)[:3])
    return f"{len(index)} parameters ({first}{', ...' if len(index) > 3 else ''})"
