"""Image trees on disk, ``DATA/<split>/<class>/<image>``: list one, check one, write one, and write the built-in digits.

The digits are a small, hard, real task without a download. scikit-learn's 1,797 scans of 8 x 8 pixels (UCI optical
recognition of handwritten digits) are split *by scan* first, so that no scan has variants in two splits. Each variant
places its scan at a random position of a larger field and adds noise.
"""

import io
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, PngImagePlugin

from dimred.errors import DataError
from dimred.io.atomic import atomic_folder, make_folder, remove_leftovers, writable

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")  # in lower or upper case
# Folders that programs leave beside the classes, apart from hidden ones: of Synology, macOS, Python, file systems.
_NO_CLASSES = {"@eaDir", "#recycle", "#snapshot", "__MACOSX", "__pycache__", "lost+found", "$RECYCLE.BIN",
               "System Volume Information"}  # fmt: skip
UNREADABLE = (OSError, ValueError, SyntaxError)
_MODES = {"RGB": "colour", "L": "grey", "CMYK": "CMYK"}
# What MindSpore decodes, whatever the file is called: not GIF, nor WebP, which browsers may save as .jpg.
_DECODED = {"JPEG", "MPO", "PNG", "BMP", "TIFF", "PPM"}
_PNG, _END_OF_PNG = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_JPEG, _END_OF_JPEG, _START_OF_SCAN = b"\xff\xd8", b"\xff\xd9", 0xDA
_WITHOUT_LENGTH = {0xFF, 0x00, 0x01, *range(0xD0, 0xD9)}  # bytes after 0xFF in a JPEG that begin no segment
FIELD = 16
N_CLASSES = 10
_N_CLASSES_OF_IMAGENET = 1000
# split: number of scans, noisy variants of each
SPLITS = {"train": (1197, 4), "val": (200, 5), "test": (400, 10)}
_SCAN_MAXIMUM = 16.0


class ImageTree(NamedTuple):
    """The images of a split, as ``read_image_tree`` lists them."""

    classes: list[str]  # names of the class folders, sorted
    n_images: int  # in all of them
    suffixes: list[str]  # of the images' names, sorted, in the case in which they are written
    passed_over: Counter[str]  # what in the classes is no image: suffix in lower case, "file" or "folder" -> number
    numbers: np.ndarray | None
    """The images' numbers, int64 (n_images,), among all entries with one of the suffixes, sorted by class and name;
    None if every such entry is an image."""


def read_image_tree(folder: Path) -> ImageTree:
    """List a split: each folder in it is a class, unless it is hidden or one that programs leave behind.

    An entry of a class folder is an image if its name has an image's suffix, and it is neither hidden nor a folder.

    Raises:
        DataError: the folder is missing, holds no class folders, or a class has no image.
    """
    if not folder.is_dir():
        raise DataError(f"no such data folder: {str(folder)!r}; expected <DATA>/<split>/<class>/<image>")
    classes = sorted(entry.name for entry in os.scandir(folder) if _is_class(entry))
    if not classes:
        raise DataError(f"data folder {str(folder)!r} has no class folders; expected <class>/<image> in it")
    counts, others, passed_over = Counter[str](), Counter[str](), Counter[str]()
    for name in classes:
        of_class, others_of_class = Counter[str](), Counter[str]()
        for entry in os.scandir(folder / name):
            if is_image(entry):
                of_class[_suffix(entry.name)] += 1
            elif _ending(entry.name).lower() in IMAGE_SUFFIXES:
                others[_ending(entry.name)] += 1
            elif is_kept(entry.name):
                others_of_class["folder" if entry.is_dir() else _suffix(entry.name).lower() or "file"] += 1
        if not of_class:
            there = f" but {count_in_words(others_of_class)}" if others_of_class else ""
            raise DataError(
                f"class {name!r} in {str(folder)!r} has no images ({', '.join(IMAGE_SUFFIXES)}){there}; add some, or "
                "remove the folder"
            )
        counts.update(of_class)
        passed_over.update(others_of_class)
    suffixes = sorted(counts)
    numbers = _numbers_of_images(folder, classes, suffixes) if counts.keys() & others.keys() else None
    return ImageTree(classes, counts.total(), suffixes, passed_over, numbers)


def _numbers_of_images(folder: Path, classes: list[str], suffixes: list[str]) -> np.ndarray:
    """Return ``ImageTree.numbers``, for a tree in which some entries look like images and are none."""
    entries = (
        entry
        for name in sorted(classes, key=os.fsencode)
        for entry in sorted(os.scandir(folder / name), key=lambda entry: os.fsencode(entry.name))
        if _ending(entry.name) in suffixes
    )
    return np.flatnonzero([is_image(entry) for entry in entries])


def images_in(class_folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a class folder that are images."""
    with os.scandir(class_folder) as entries:
        yield from filter(is_image, entries)


def is_image(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry of a folder is an image, by its name and by being no folder."""
    return _suffix(entry.name).lower() in IMAGE_SUFFIXES and not entry.name.startswith(".") and not entry.is_dir()


def is_kept(name: str) -> bool:
    """Return whether a folder's name may be that of a class: it is not hidden, and no program's own."""
    return not name.startswith(".") and name not in _NO_CLASSES


def count_in_words(kinds: Counter[str]) -> str:
    """Return numbers of files by suffix, and of folders, in words, such as ``3 .webp, 2 folders``."""
    return ", ".join(f"{count} {kind}" + "s" * (kind[0] != "." and count > 1) for kind, count in sorted(kinds.items()))


def _suffix(name: str) -> str:
    """Return ``Path(name).suffix`` in a tenth of its time: ImageNet has 1.3 million names."""
    stem, dot, ending = name.rpartition(".")
    return dot + ending if stem else ""


def _ending(name: str) -> str:
    """Return what MindSpore takes for the suffix: also the whole of a hidden name such as ``.png``."""
    _, dot, ending = name.rpartition(".")
    return dot + ending


@contextmanager
def open_image(file: str | io.BytesIO) -> Iterator[Image.Image]:
    """Open an image with Pillow, without its limits on pixels and on texts and profiles in a PNG: MindSpore has none.

    Raises:
        OSError, ValueError, SyntaxError: it can't be opened, or not be read inside the block; these are ``UNREADABLE``.
    """
    before = Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY
    Image.MAX_IMAGE_PIXELS = None
    PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = sys.maxsize
    try:
        with Image.open(file) as image:
            yield image
    finally:
        Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY = before


def is_cut(content: bytes) -> bool:
    """Return whether the bytes of a JPEG or PNG file stop before the marker that ends an image.

    MindSpore decodes such a JPEG with pixels that are made up, never returns, or kills the process.
    """
    if content.startswith(_JPEG):
        return content.find(_END_OF_JPEG, _first_scan(content)) < 0
    return content.startswith(_PNG) and _END_OF_PNG not in content


def _first_scan(content: bytes) -> int:
    """Return where the first scan of a JPEG begins: behind all segments, as a thumbnail in one has an end marker."""
    at = content.find(b"\xff", 2)
    while 0 <= at < len(content) - 3:
        marker = content[at + 1]
        if marker == _START_OF_SCAN:
            return at
        length = 0 if marker in _WITHOUT_LENGTH else int.from_bytes(content[at + 2 : at + 4], "big")
        at = content.find(b"\xff", at + (1 if marker == 0xFF else 2 + length))
    return len(content)


class CheckedImages(NamedTuple):
    """What ``check_images`` found below a folder."""

    kinds: dict[Path, str]  # file -> colour, grey, CMYK, other (palettes, transparency), or damaged
    not_read: Counter[str]  # suffix in lower case, or "file" -> number of files that are no images


def check_images(root: Path, workers: int) -> CheckedImages:
    """Decode every image below a folder to find damaged ones, except hidden ones and those in hidden folders.

    Args:
        root: the folder.
        workers: number of processes that decode.

    Raises:
        DataError: there are no images.
    """
    files, not_read = [], Counter[str]()
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
    """Check that DATA has as many class folders as ImageNet, for which a training is configured without ``--config``.

    Args:
        root: DATA, as the user typed it.
        recipes: names of the recipes, for the error.

    Raises:
        DataError: it has not; the message says what it has.
    """
    train = root / "train"
    classes = sorted(entry.name for entry in os.scandir(train) if _is_class(entry)) if train.is_dir() else []
    if len(classes) == _N_CLASSES_OF_IMAGENET:
        return
    here = f"it has {len(classes):,} class folders in train"
    first = next((image for name in classes for image in images_in(train / name)), None)
    if first is not None:
        with suppress(*UNREADABLE), open_image(first.path) as image:
            here += f", and its first image has {image.width} x {image.height} pixels"
    raise DataError(
        f"--config is missing, and DATA is {str(root)!r}, which is not ImageNet with its "
        f"{_N_CLASSES_OF_IMAGENET:,} classes: {here}. Give a recipe ({', '.join(recipes)}), or a file of your own, "
        "which dimred init writes; in it, set model.n_classes and data.image_size"
    )


def _is_class(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir() and is_kept(entry.name)


def _files_below(root: Path) -> Iterator[Path]:
    """Yield the files at any depth, also behind links to folders; a folder with several links is visited once."""
    real_paths = set()
    for folder, inside, names in os.walk(root, followlinks=True):
        if (real_path := os.path.realpath(folder)) in real_paths:
            inside.clear()
            continue
        real_paths.add(real_path)
        inside[:] = filter(is_kept, inside)
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def _kind(path: Path) -> str:
    try:
        content = path.read_bytes()
        with open_image(io.BytesIO(content)) as image:
            if is_cut(content):
                return "damaged"
            image.load()
            is_decoded = image.format in _DECODED and not (image.format == "TIFF" and image.mode in ("I", "F"))
            return _MODES.get(image.mode, "other") if is_decoded else "damaged"
    except UNREADABLE:
        return "damaged"


def write_image_tree(out: Path, images: Iterable[tuple[str, str, str, np.ndarray]]) -> dict[str, int]:
    """Write PNG files ``out/<split>/<class>/<name>.png``: all of them or, after an error, none.

    Args:
        out: a folder that does not exist yet, or is empty.
        images: tuples (split, class, name, pixels). Pixels, (height, width) or (height, width, 3) on the 0 to 255
            scale, are rounded and clipped.

    Returns:
        The number of images in each split.

    Raises:
        DataError: ``out`` holds something already.
        ConfigError: ``out`` can't be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"OUT is {str(out)!r}, which exists already; name a new folder, or remove that one first")
    counts: Counter[str] = Counter()
    with writable("OUT", out):
        make_folder(out.parent)
        remove_leftovers(out.parent)
        with atomic_folder(out) as folder:
            for split, class_name, name, pixels in images:
                path = folder / split / class_name / f"{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8)).save(path)
                counts[split] += 1
    return dict(counts)


def write_digits(out: Path, seed: int = 1, noise: float = 0.32, label_noise: float = 0.0) -> dict[str, int]:
    """Write ``train/<digit>/*.png``, ``val/...`` and ``test/...`` under ``out``; the same seed gives the same bytes.

    Args:
        out: a folder that does not exist yet, or is empty.
        seed: determines the split, the shifts, the noise and the wrong labels.
        noise: standard deviation of the pixel noise, as a fraction of a scan's full intensity.
        label_noise: fraction of the *training* images that go to a class drawn at random; val and test stay clean.

    Returns:
        The number of images in each split.

    Raises:
        DataError: ``out`` holds something already.
        ConfigError: ``out`` can't be written; nothing is left behind.
    """
    return write_image_tree(out, _images(seed, noise, label_noise))


def _images(seed: int, noise: float, label_noise: float) -> Iterator[tuple[str, str, str, np.ndarray]]:
    """Yield (split, digit, name, pixels) of every image."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    scans = digits.images / _SCAN_MAXIMUM
    order = iter(np.random.default_rng([seed, 0]).permutation(len(scans)))
    for number, (split, (n_scans, n_variants)) in enumerate(SPLITS.items(), start=1):
        rng = np.random.default_rng([seed, number])
        labels = np.random.default_rng([seed, number, 1])
        for _ in range(n_scans):
            scan = next(order)
            for variant in range(n_variants):
                label = digits.target[scan]
                if split == "train" and labels.random() < label_noise:
                    label = labels.integers(N_CLASSES)
                yield split, str(label), f"scan{scan:04d}_{variant:02d}", _noisy_field(scans[scan], noise, rng)


def _noisy_field(scan: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    """Return one variant, (FIELD, FIELD): the scan at a random place on dark grey (64), with noise on all pixels."""
    height, width = scan.shape
    field = np.zeros((FIELD, FIELD))
    top = rng.integers(0, FIELD - height + 1)
    left = rng.integers(0, FIELD - width + 1)
    field[top : top + height, left : left + width] = scan
    field += rng.normal(0.0, noise, field.shape)
    return 64.0 + 128.0 * field
