"""Write an ImageFolder tree whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from dimred.errors import DataError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")  # in small or capital letters


@contextmanager
def new_image_tree(out: Path) -> Iterator[Path]:
    """A folder to write into, which becomes ``out`` when the block ends well, and vanishes when it does not.

    Raises:
        DataError: ``out`` holds something already, or can't be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"OUT is {str(out)!r}, which exists already; name a new folder, or remove that one first")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        why = error.strerror
        raise DataError(f"OUT is {str(out)!r}, which can't be written ({why}); name another folder") from error
    try:
        yield unfinished
        unfinished.chmod(0o755)
        if out.exists():
            out.rmdir()
        unfinished.rename(out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def check_seed(seed: int) -> None:
    """Raises DataError where ``seed`` is negative."""
    if seed < 0:
        raise DataError(f"--seed is {seed}; it must be 0 or more")


def save_image(pixels: np.ndarray, path: Path) -> None:
    """Write (height, width) or (height, width, 3) numbers on the 0 to 255 scale as a PNG file, clipped and rounded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8)).save(path)
