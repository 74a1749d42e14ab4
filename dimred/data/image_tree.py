"""ImageFolder trees on disk, ``DATA/<split>/<class>/<image>``: reading their classes, and writing new ones."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from dimred.errors import DataError
from dimred.io.atomic import atomic_folder, writable

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")  # in small or capital letters
_UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
_MODES = {"RGB": "colour", "L": "grey", "CMYK": "CMYK"}


def split_folder(root: Path, split: str) -> Path:
    """Return ``root/split``; for ``val`` also ``root/validation_preprocess``, as ImageNet's is often called."""
    other = root / "validation_preprocess"
    return other if split == "val" and not (root / split).exists() and other.is_dir() else root / split


def check_classes(root: Path, classes: Mapping[str, Sequence[str]], n_classes: int) -> None:
    """Check that all splits of ``root`` have the same classes, and that these fit the network.

    Args:
        root: as the user typed it.
        classes: split -> names of its class folders.
        n_classes: outputs of the network.

    Raises:
        DataError: names the first split that does not fit.
    """
    first, *others = classes
    for split in others:
        if differing := sorted(set(classes[first]) ^ set(classes[split])):
            with_it, without = (first, split) if differing[0] in classes[first] else (split, first)
            raise DataError(
                f"{with_it!r} in {str(root)!r} has a class {differing[0]!r}, and {without!r} has none; "
                f"{len(differing)} in all are in one of them alone; give every split the same class folders"
            )
    if (n_found := len(classes[first])) > n_classes:
        raise DataError(f"{str(root)!r} has {n_found} classes, but the model has n_classes {n_classes}; raise it")


def smallest_side(folder: Path) -> int | None:
    """Return the shorter side of one image of a split in pixels, or None if it can't be read."""
    try:
        images = (path for path in folder.glob("*/*") if path.suffix.lower() in IMAGE_SUFFIXES)
        with Image.open(next(images)) as image:
            return min(image.size)
    except (StopIteration, *_UNREADABLE):
        return None


class ImageTree(NamedTuple):
    """The images of one split, counted once."""

    classes: list[str]  # names of the class folders, sorted
    n_images: int  # in all of them
    suffixes: list[str]  # of the images' names, sorted, in the case that they have


def read_image_tree(folder: Path) -> ImageTree:
    """Count the images of a split.

    Raises:
        DataError: the folder is missing, holds no class folders, or a class has no image.
    """
    if not folder.is_dir():
        raise DataError(f"no such data folder: {str(folder)!r}; expected <DATA>/<split>/<class>/<image>")
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if not classes:
        raise DataError(f"data folder {str(folder)!r} has no class folders; expected <class>/<image> in it")
    counts: Counter[str] = Counter()
    for name in classes:
        suffixes = Counter(_suffix(entry.name) for entry in os.scandir(folder / name))
        found = {suffix: count for suffix, count in suffixes.items() if suffix.lower() in IMAGE_SUFFIXES}
        if not found:
            raise DataError(
                f"class {name!r} in {str(folder)!r} has no images ({', '.join(IMAGE_SUFFIXES)}); add some, or "
                "remove the folder"
            )
        counts.update(found)
    return ImageTree(classes, counts.total(), sorted(counts))


def digest_of_images(folder: Path, classes: Sequence[str]) -> str:
    """Return a digest of every image's class, name and size in bytes, in hexadecimal."""
    found = hashlib.sha256()
    for name in classes:
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder / name)}
        images = sorted(file for file in sizes if _suffix(file).lower() in IMAGE_SUFFIXES)
        found.update(os.fsencode("".join(f"{name}/{image}\0{sizes[image]}\n" for image in images)))
    return found.hexdigest()


def _suffix(name: str) -> str:
    """Return what ``Path(name).suffix`` is, in a tenth of the time: ImageNet has 1.3 million names."""
    stem, dot, ending = name.rpartition(".")
    return dot + ending if stem else ""


def check_images(root: Path, workers: int) -> dict[Path, str]:
    """Decode every image below ``root`` in ``workers`` processes.

    Returns:
        File -> ``colour``, ``grey``, ``CMYK``, ``other`` (palettes, transparency), or ``damaged``.

    Raises:
        DataError: there are no images.
    """
    files = sorted(path for path in root.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise DataError(f"DATA is {str(root)!r}, which holds no images ({', '.join(IMAGE_SUFFIXES)})")
    with ProcessPoolExecutor(workers) as pool:
        return dict(zip(files, pool.map(_kind, files, chunksize=64), strict=True))


def _kind(path: Path) -> str:
    try:
        with Image.open(path) as image:
            image.load()
            return _MODES.get(image.mode, "other")
    except _UNREADABLE:
        return "damaged"


def write_image_tree(out: Path, images: Iterable[tuple[str, str, str, np.ndarray]]) -> dict[str, int]:
    """Write PNG files ``out/<split>/<class>/<name>.png``, all of them or, after an error, none.

    Args:
        out: a folder that does not exist yet, or is empty.
        images: (split, class, name, pixels) each; pixels (height, width) or (height, width, 3), on the 0 to 255 scale,
            are rounded and clipped.

    Returns:
        The number of images in each split.

    Raises:
        DataError: ``out`` holds something already; ConfigError: it can't be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"OUT is {str(out)!r}, which exists already; name a new folder, or remove that one first")
    counts: Counter[str] = Counter()
    with writable("OUT", out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(out) as unfinished:
            for split, class_name, name, pixels in images:
                save_image(pixels, unfinished / split / class_name / f"{name}.png")
                counts[split] += 1
    return dict(counts)


def save_image(pixels: np.ndarray, path: Path) -> None:
    """Write one image; see ``write_image_tree`` for the pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8)).save(path)
