"""The record of a merge, ``OUT.json``, says what the result was made from."""

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dimred.checkpoints.checkpoint_io import Checkpoint
from dimred.checkpoints.stored_tensor import reading
from dimred.errors import ConfigError, FaultError
from dimred.io.atomic import atomic_write, describe_os_error

CARD = "README.md"  # of a model, as hubs have it
INPUT_CARD = "README.input.md"  # the last input's
WORK_FOLDER = ".merge"  # ends the name of the folder with the scores
_FORMAT, _VERSION = "dimred merge", 2
_LIBRARIES = ("dimred", "numpy", "safetensors")
_REMEDY = (
    "re-estimate them on training data, for MindSpore by dimred eval with --save; with a metric, by a function "
    "reestimate(candidate) in its file"
)
_SAMPLES, _SAMPLE_BYTES = 1024, 1 << 14


def record_path(out: Path) -> Path:
    """Return the path of a result's record."""
    return out.with_name(out.name + ".json")


def work_folder(out: Path) -> Path:
    """Return the folder with the scores that a result was chosen by."""
    return out.with_name(out.name + WORK_FOLDER)


@contextmanager
def name_faults(out: Path) -> Iterator[None]:
    """Turn an error of the disk inside the block into a FaultError that names ``out``, as the user typed it."""
    try:
        yield
    except OSError as error:
        raise FaultError(f"--out is {str(out)!r}, which can't be written ({describe_os_error(error)})") from error


def check_is_new(out: Path) -> None:
    """Check that neither a result nor its record exists; ConfigError if one does."""
    for path in (out, record_path(out)):
        with name_faults(out):
            exists = path.exists()
        if exists:
            raise ConfigError(f"--out is {str(out)!r}, but {str(path)!r} exists already; name another")


def record_of(
    checkpoints: Sequence[Checkpoint],
    coefficients: np.ndarray,
    template: Checkpoint,
    order: str,
    dtype: str | None,
    command: str,
) -> dict[str, Any]:
    """Describe what a result was made from.

    Args:
        checkpoints: in order.
        coefficients: float64 (N,), with any sum.
        template: the checkpoint that all else was copied from.
        order: what the checkpoints were ordered by.
        dtype: of the weights, as the user gave it.
        command: that makes it again.

    Raises:
        CheckpointError: a checkpoint can't be read.
    """
    inputs = [
        {
            "path": str(checkpoint.path),
            "step": checkpoint.step,
            "coefficient": share,
            "sample_sha256": [sample_digest(file) for file in checkpoint.files],
        }
        for checkpoint, share in zip(checkpoints, (coefficients / coefficients.sum()).tolist(), strict=True)
    ]
    origin = "averages" if template in checkpoints else f"those of {template.path}"
    statistics = f"{len(template.statistics)} statistics are {origin}, which do not belong to these weights: {_REMEDY}"
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "checkpoints": inputs,
        "command": command,
        "order": order,
        "all_else_from": str(template.path),
        "dtype": dtype or "as the checkpoints",
        "batch_norm": statistics if template.statistics else "there are no statistics",
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES},
    }


def write_record(out: Path, record: dict[str, Any]) -> None:
    """Write the record of a result, whole or not at all."""
    atomic_write(record_path(out), json.dumps(record, indent=1, allow_nan=False) + "\n")


def has_record(out: Path) -> bool:
    """Return whether a file or folder is the result of a merge."""
    try:
        record = json.loads(record_path(out).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.get("format") == _FORMAT


def sample_digest(path: Path) -> str:
    """Compute the SHA-256 of a file's size and of up to 1,024 evenly spread blocks of 16 KiB.

    Two checkpoints differ nearly everywhere, so this tells them apart without reading terabytes again.

    Raises:
        CheckpointError: the file can't be read.
    """
    with reading(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(size.to_bytes(8, "little"))
        whole = size <= _SAMPLES * _SAMPLE_BYTES
        for number in range(-(-size // _SAMPLE_BYTES) if whole else _SAMPLES):
            start = number * _SAMPLE_BYTES if whole else number * (size - _SAMPLE_BYTES) // (_SAMPLES - 1)
            digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, start))
    return digest.hexdigest()
