"""Check folders of images before training: ``dimred data check``, and whether DATA can be ImageNet."""

import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dimred.data.image_tree import (
    IMAGE_SUFFIXES,
    UNREADABLE,
    classes_in,
    count_in_words,
    images_in,
    is_cut,
    is_kept,
    open_image,
)
from dimred.errors import DataError
from dimred.io.regular_file import NotRegularError, read_regular

_N_CLASSES_OF_IMAGENET = 1000
UNUSABLE = ("damaged", "no file")  # kinds of images
_MODES = {"RGB": "colour", "L": "grey", "CMYK": "CMYK"}
# Formats that MindSpore decodes, whatever the file's name; neither GIF nor WebP, which browsers may save as .jpg.
_DECODED = {"JPEG", "MPO", "PNG", "BMP", "TIFF", "PPM"}


class CheckedImages(NamedTuple):
    """The result of ``check_images`` for a folder."""

    kinds: dict[Path, str]  # file -> colour, grey, CMYK, other (palettes, transparency), damaged, or no file
    not_read: Counter[str]  # suffix in lower case, or "file" -> number of files that are not images


def check_images(root: Path, workers: int) -> CheckedImages:
    """Decode every image below a folder to find damaged ones; hidden images and hidden folders are left out.

    Args:
        root: the folder.
        workers: number of processes that decode.

    Raises:
        DataError: there are no images.
    """
    files = []
    not_read = Counter[str]()
    for path in _files_below(root):
        if path.suffix.lower() in IMAGE_SUFFIXES:
            files.append(path)
        else:
            not_read[path.suffix.lower() or "file"] += 1
    if not files:
        there = f" but {count_in_words(not_read)}" if not_read else ""
        raise DataError(f"DATA is {str(root)!r}, which holds no images ({', '.join(IMAGE_SUFFIXES)}){there}")
    with ProcessPoolExecutor(workers) as pool:
        return CheckedImages(
            dict(zip(sorted(files), pool.map(_kind, sorted(files), chunksize=64), strict=True)), not_read
        )


def check_is_imagenet(root: Path, recipes: Sequence[str]) -> None:
    """Check that DATA has as many class folders as ImageNet, because without ``--config`` ImageNet's recipe is used.

    Args:
        root: DATA, as the user typed it.
        recipes: names of the recipes, for the error.

    Raises:
        DataError: it has a different number; the message says which.
    """
    train = root / "train"
    classes = classes_in(train) if train.is_dir() else []
    if len(classes) == _N_CLASSES_OF_IMAGENET:
        return
    here = f"it has {len(classes):,} class folders in train"
    first = next((image for name in classes for image in images_in(train / name)), None)
    if first is not None:
        with suppress(*UNREADABLE), open_image(first.path) as image:
            here += f", and its first image has {image.width} x {image.height} pixels"
    raise DataError(
        f"--config is missing, and DATA is {str(root)!r}, which is not ImageNet with its "
        f"{_N_CLASSES_OF_IMAGENET:,} classes: {here}. Give a recipe ({', '.join(recipes)}), or your own file: "
        "dimred init writes one, in which you set model.n_classes and data.image_size"
    )


def _files_below(root: Path) -> Iterator[Path]:
    """Yield the files at any depth, following links to folders; a folder with several links is visited once."""
    real_paths = set()
    for folder, inside, names in os.walk(root, followlinks=True):
        real_path = os.path.realpath(folder)
        if real_path in real_paths:
            inside.clear()
            continue
        real_paths.add(real_path)
        inside[:] = filter(is_kept, inside)
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def _kind(path: Path) -> str:
    try:
        content = read_regular(path)
        with open_image(io.BytesIO(content)) as image:
            if is_cut(content):
                return "damaged"
            image.load()
            is_decoded = image.format in _DECODED and not (image.format == "TIFF" and image.mode in ("I", "F"))
            return _MODES.get(image.mode, "other") if is_decoded else "damaged"
    except NotRegularError:
        return "no file"
    except UNREADABLE:
        return "damaged"
