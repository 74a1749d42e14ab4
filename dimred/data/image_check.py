"""Which images of a tree can't be decoded, and which are unusual: every file is decoded once."""

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from dimred.data.image_tree import IMAGE_SUFFIXES
from dimred.errors import DataError

_MODES = {"L": "grey", "CMYK": "CMYK"}


class ImageCounts(NamedTuple):
    """What was found.

    Attributes:
        counts: kind -> images: ``colour``, ``grey``, ``CMYK``, ``other`` (palettes, transparency), ``damaged``.
        damaged: the files that can't be decoded.
    """

    counts: dict[str, int]
    damaged: list[Path]


def check_images(root: Path, workers: int) -> ImageCounts:
    """Decode every image below ``root``.

    Args:
        root: a folder.
        workers: processes.

    Raises:
        DataError: there are no images.
    """
    files = sorted(path for path in root.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise DataError(f"DATA is {str(root)!r}, which holds no images ({', '.join(IMAGE_SUFFIXES)})")
    with ProcessPoolExecutor(workers) as pool:
        kinds = list(pool.map(_kind, files, chunksize=64))
    damaged = [path for path, kind in zip(files, kinds, strict=True) if kind == "damaged"]
    return ImageCounts(dict(Counter(kinds)), damaged)


def _kind(path: Path) -> str:
    try:
        with Image.open(path) as image:
            image.load()
            return "colour" if image.mode == "RGB" else _MODES.get(image.mode, "other")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return "damaged"
