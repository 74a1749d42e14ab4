"""Read and write checkpoint files: MindSpore's ``.ckpt``, and ``.safetensors`` of any framework.

MindSpore is not needed. Reading unpickles nothing, checks sizes before it takes memory, and opens no other file.
``mindspore.load_checkpoint`` can read the files written here.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from dimred.checkpoints.ckpt_format import LONGEST_NAME, check_ckpt_crc, read_ckpt_index, write_ckpt
from dimred.checkpoints.layout import WeightLayout, as_array
from dimred.checkpoints.safetensors_format import read_safetensors_index, write_safetensors
from dimred.checkpoints.stored_tensor import StoredTensor, reading
from dimred.errors import CheckpointError, ConfigError, shown
from dimred.io.atomic import open_atomic
from dimred.io.regular_file import open_regular

SUFFIXES = (".ckpt", ".safetensors")
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
Stamps = tuple[tuple[int, int], ...]  # each file's size and time of last change


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read the tensors of a ``.ckpt`` or ``.safetensors`` file: name -> array, in the file's order.

    Numbers are arrays without dimensions, and so are texts (``.item()`` gives the Python value); bfloat16 becomes
    float32. A ``.ckpt`` file that carries a checksum is compared with it first.

    Raises:
        CheckpointError: the file is missing, truncated, damaged, or of another kind.
    """
    source = Path(path)
    with open_checkpoint(source) as file:
        index, texts = _index(file, source, verify=True)
        values = {name: tensor.read(file.fileno()) for name, tensor in index.items()}
    return values | {name: np.array(text) for name, text in texts.items()}


def read_index(path: str | os.PathLike[str], *, verify: bool = False) -> dict[str, StoredTensor]:
    """Locate each tensor of a checkpoint without loading the values.

    Args:
        path: the file.
        verify: whether to compare a ``.ckpt`` file with the checksum it may carry, which reads the whole file.

    Returns:
        Name -> place, in the file's order.

    Raises:
        CheckpointError: as ``read_checkpoint``.
    """
    with open_checkpoint(path) as file:
        return _index(file, Path(path), verify)[0]


def open_checkpoint(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a checkpoint file for reading; CheckpointError if it is missing or can't be opened."""
    with reading(path):
        return open_regular(path)


def _index(file: BinaryIO, path: Path, verify: bool) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Locate the tensors, name -> place, and read the texts in the metadata of ``.safetensors``, name -> text."""
    if path.suffix not in SUFFIXES:
        raise CheckpointError(f"{path} is not a checkpoint: its name must end in {' or '.join(SUFFIXES)}.")
    if os.fstat(file.fileno()).st_size == 0:
        raise CheckpointError(f"{path} is empty. Save it again.")
    with reading(path):
        if os.pread(file.fileno(), len(_LFS_POINTER), 0) == _LFS_POINTER:
            raise CheckpointError(
                f"{path} is a Git LFS pointer, not the file itself; fetch the file with git lfs pull."
            )
        if path.suffix == ".safetensors":
            return read_safetensors_index(file, path)
        index = read_ckpt_index(file, path)
        if verify:
            check_ckpt_crc(file, path)
        return index, {}


def check_ending(path: Path, argument: str) -> None:
    """Check that ``path`` ends as a checkpoint's name must; if not, raise a ConfigError that names ``argument``."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"{argument} is {str(path)!r}; a checkpoint's name must end in {' or '.join(SUFFIXES)}.", argument=argument
        )


def write_checkpoint(
    path: str | os.PathLike[str],
    weights: Mapping[str, Any],
    extra: Mapping[str, int | float | str | np.ndarray] | None = None,
) -> None:
    """Write a checkpoint atomically: to a temporary file in the same folder, which is flushed and renamed.

    Args:
        path: ends in ``.ckpt`` or ``.safetensors``; an existing file is replaced.
        weights: name -> array, tensor or parameter.
        extra: numbers, texts and arrays to store beside the weights, such as the epoch.

    Raises:
        ConfigError: the path has another ending, there are no arrays, a name is in both mappings, or a name or a value
            can't be stored.
        OSError: the folder does not exist, is not writable, or is full.
    """
    target = Path(path)
    check_ending(target, "path")
    values: dict[str, np.ndarray | str] = {name: _storable(name, as_array(v)) for name, v in weights.items()}
    for name, value in (extra or {}).items():
        if name in values:
            raise ConfigError(f"extra has the name {name!r}, which is also a weight; rename it.", argument="extra")
        values[name] = value if isinstance(value, str) else _storable(name, np.asarray(value))
    if not any(isinstance(value, np.ndarray) for value in values.values()):
        raise ConfigError("weights is empty; a checkpoint needs at least one array.", argument="weights")
    for name in values:
        _check_name(name, target.suffix)
    write = write_safetensors if target.suffix == ".safetensors" else write_ckpt
    with open_atomic(target) as file:
        write(file, values)


def _check_name(name: object, suffix: str) -> None:
    """Check that a tensor of this name can be read again; ConfigError if not."""
    try:
        is_readable = isinstance(name, str) and len(name.encode()) <= LONGEST_NAME
    except UnicodeEncodeError:  # a lone surrogate, as os.fsdecode makes them
        is_readable = False
    if not is_readable or (suffix == ".safetensors" and name == "__metadata__"):
        raise ConfigError(
            f"weights has the name {shown(name)}; a name is a text of up to {LONGEST_NAME:,} bytes in UTF-8, and not "
            "__metadata__",
            argument="weights",
        )


def _storable(name: str, value: np.ndarray) -> np.ndarray:
    if value.dtype.kind not in "fiub" or value.dtype.itemsize > 8:
        raise ConfigError(
            f"{name!r} has the type {value.dtype}; a checkpoint stores numbers of up to 64 bits, bool and texts."
        )
    return np.asarray(value, value.dtype.newbyteorder("<"), order="C")


@dataclass(frozen=True)
class Checkpoint:
    """One network's checkpoint, in one file or in shards; its tensors stay on disk."""

    path: Path  # the file, or the folder of the shards
    files: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]
    stamps: Stamps = field(default=(), compare=False)  # taken before the files' indices were read

    @classmethod
    def open(cls, path: Path, *, verify: bool = True) -> Self:
        """Locate the tensors of a single checkpoint file; arguments and errors are as for ``read_index``."""
        stamps = stamps_of([path])
        return cls(path, (path,), read_index(path, verify=verify), stamps=stamps)

    def check_fit(self, layout: WeightLayout) -> None:
        """Raise CheckpointError unless the file has every weight of ``layout`` as a float tensor of its shape."""
        if misfit := self.misfit(layout):
            raise CheckpointError(f"{self.path} does not fit the network or the other snapshots: {misfit}.")

    def misfit(self, layout: WeightLayout) -> str | None:
        """Say which weight of ``layout`` is missing, is not a float, or has another shape; None if all are right."""
        if misfit := layout.misfit(self.tensors):
            return misfit
        for name in layout.names:
            if not self.tensors[name].is_float:
                return f"its parameter {name!r} has the type {self.tensors[name].dtype}, not a float type"
        return None

    def check_unchanged(self) -> None:
        """Check that no file was written or replaced since it was opened; CheckpointError if one was."""
        if stamps_of(self.files) != self.stamps:
            raise CheckpointError(f"{self.path} was written or replaced while it was read.")


def stamps_of(files: Iterable[Path]) -> Stamps:
    """Return size and time of each file, by which a change shows; CheckpointError if one can't be read."""
    stamps = []
    for path in files:
        with reading(path):
            status = path.stat()
        stamps.append((status.st_size, status.st_mtime_ns))
    return tuple(stamps)
