"""Recognise PyTorch's pickles by their endings or first bytes, and refuse them without reading them."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from dimred.checkpoints.checkpoint_io import open_checkpoint
from dimred.checkpoints.stored_tensor import reading
from dimred.errors import CheckpointError

PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".tar")
_MOST_NAMES = 3  # in a message


def is_pickle(path: Path) -> bool:
    """Return whether a file is a pickle: by suffix; ``.ckpt`` files, which MindSpore also writes, by their first bytes.

    Raises:
        CheckpointError: the file can't be read.
    """
    if path.suffix != ".ckpt":
        return path.name.endswith(PICKLES)
    with open_checkpoint(path) as file, reading(path):
        return file.read(4).startswith((b"PK\x03\x04", b"\x80"))


def converted_path(path: Path) -> Path:
    """Return the path that a pickle's weights have after ``dimred convert``."""
    stem = path.name
    for ending in (".safetensors", ".tar", ".ckpt", *PICKLES):
        stem = stem.removesuffix(ending)
    return path.with_name(f"{stem}.safetensors")


def refusal(pickles: Sequence[Path]) -> CheckpointError:
    """Return the error about pickles among the checkpoints."""
    names = ", ".join(map(str, pickles[:_MOST_NAMES])) + (", ..." if len(pickles) > _MOST_NAMES else "")
    are = "is a pickle" if len(pickles) == 1 else "are pickles"
    command = shlex.join(["dimred", "convert", str(pickles[0])])
    return CheckpointError(
        f"{names} {are}, which could run any code; give the other checkpoints themselves, or convert each where "
        f"PyTorch is installed: {command}"
    )
