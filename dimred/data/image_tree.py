"""Class folders of images, ``DATA/<split>/<class>/<image>``: list them, open an image, and see whether it is cut."""

import io
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, PngImagePlugin

from dimred.errors import DataError
from dimred.io.regular_file import NotRegularError, check_regular, open_regular

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")  # in lower or upper case
# Folders beside the classes that are not hidden, but left behind by Synology, macOS, Python, Windows, file systems.
_NO_CLASSES = {
    "@eaDir",
    "#recycle",
    "#snapshot",
    "__MACOSX",
    "__pycache__",
    "lost+found",
    "$RECYCLE.BIN",
    "System Volume Information",
}
UNREADABLE = (OSError, ValueError, SyntaxError)
_PNG = b"\x89PNG\r\n\x1a\n"
_END_OF_PNG = b"IEND\xaeB`\x82"
_JPEG = b"\xff\xd8"
_END_OF_JPEG = b"\xff\xd9"
_START_OF_SCAN = 0xDA
_WITHOUT_LENGTH = {0xFF, 0x00, 0x01, *range(0xD0, 0xD9)}  # bytes after 0xFF in a JPEG that begin no segment


class ImageTree(NamedTuple):
    """The images of a split, as ``read_image_tree`` lists them."""

    classes: list[str]  # names of the class folders, sorted
    n_images: int  # images in all classes
    suffixes: list[str]  # of the images' names, sorted, in their original case
    passed_over: Counter[str]  # entries that are not images: suffix in lower case, "file" or "folder" -> number
    numbers: np.ndarray | None
    """The images' indices, int64 (n_images,), among all entries with one of the suffixes, sorted by class and name;
    None if every such entry is an image."""


def read_image_tree(folder: Path) -> ImageTree:
    """List a split: each folder in it is a class, unless it is hidden or left behind by a program.

    An entry in a class folder is an image if its name has an image suffix, and it is neither hidden nor a folder.

    Raises:
        DataError: the folder is missing, holds no class folders, or a class has no image.
    """
    if not folder.is_dir():
        raise DataError(f"the data folder {str(folder)!r} does not exist; expected <DATA>/<split>/<class>/<image>")
    classes = classes_in(folder)
    if not classes:
        raise DataError(f"the data folder {str(folder)!r} has no class folders; expected <class>/<image> in it")
    counts = Counter[str]()
    passed_over = Counter[str]()
    similar = set[str]()
    for name in classes:
        images = list[os.DirEntry[str]]()
        others = list[os.DirEntry[str]]()
        with os.scandir(folder / name) as entries:
            for entry in entries:
                (images if is_image(entry) else others).append(entry)
        counts.update(_suffix(entry.name) for entry in images)
        kinds = _kinds(others)
        passed_over.update(kinds)
        similar |= {_ending(entry.name) for entry in others}
        if not images:
            there = f" but {count_in_words(kinds)}" if kinds else ""
            raise DataError(
                f"class {name!r} in {str(folder)!r} has no images ({', '.join(IMAGE_SUFFIXES)}){there}; add some, or "
                "remove the folder"
            )
    suffixes = sorted(counts)
    numbers = _numbers_of_images(folder, classes, suffixes) if counts.keys() & similar else None
    return ImageTree(classes, counts.total(), suffixes, passed_over, numbers)


def _kinds(others: Iterable[os.DirEntry[str]]) -> Counter[str]:
    """Count by kind the entries of a class folder that are not images.

    Left out are those with an image suffix, hidden ones, and those that a program left behind.
    """
    return Counter(
        "folder" if entry.is_dir() else _suffix(entry.name).lower() or "file"
        for entry in others
        if _ending(entry.name).lower() not in IMAGE_SUFFIXES and is_kept(entry.name)
    )


def _numbers_of_images(folder: Path, classes: list[str], suffixes: list[str]) -> np.ndarray:
    """Return ``ImageTree.numbers``, for a tree in which some entries look like images but are not."""
    entries = (
        entry
        for name in sorted(classes, key=os.fsencode)
        for entry in sorted(os.scandir(folder / name), key=lambda entry: os.fsencode(entry.name))
        if _ending(entry.name) in suffixes
    )
    return np.flatnonzero([is_image(entry) for entry in entries])


def images_in(class_folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the images in a class folder."""
    with os.scandir(class_folder) as entries:
        yield from filter(is_image, entries)


def image_paths(folder: Path, classes: Iterable[str]) -> list[str]:
    """Return ``<class>/<image>`` for every image in a split, in the order in which MindSpore reads them."""
    paths = list[str]()
    for name in sorted(classes, key=os.fsencode):
        images = sorted((image.name for image in images_in(folder / name)), key=os.fsencode)
        paths += [f"{name}/{image}" for image in images]
    return paths


def is_image(entry: os.DirEntry[str]) -> bool:
    """Return whether a folder entry is an image: it has an image suffix, and is neither hidden nor a folder.

    Raises:
        DataError: such an entry is a named pipe or the like. MindSpore would wait for ever to read it.
    """
    if _suffix(entry.name).lower() not in IMAGE_SUFFIXES or entry.name.startswith(".") or entry.is_dir():
        return False
    if not entry.is_file():
        with suppress(FileNotFoundError):  # a dangling link counts as a damaged image
            _check_regular(entry)
    return True


def _check_regular(entry: os.DirEntry[str]) -> None:
    try:
        check_regular(entry)
    except NotRegularError as error:
        raise DataError(f"the image {entry.path!r} can't be read ({error}); remove it") from None


def is_kept(name: str) -> bool:
    """Return whether a folder's name may be a class name: it is neither hidden nor left behind by a program."""
    return not name.startswith(".") and name not in _NO_CLASSES


def count_in_words(kinds: Counter[str]) -> str:
    """Return a phrase with the number of files by suffix, and of folders, such as ``3 .webp, 2 folders``."""
    return ", ".join(f"{count} {kind}" + "s" * (kind[0] != "." and count > 1) for kind, count in sorted(kinds.items()))


def _suffix(name: str) -> str:
    """Return ``Path(name).suffix`` in a tenth of the time: ImageNet has 1.3 million names."""
    stem, dot, ending = name.rpartition(".")
    return dot + ending if stem else ""


def _ending(name: str) -> str:
    """Return the suffix as MindSpore sees it: for a hidden name such as ``.png``, the whole name."""
    _, dot, ending = name.rpartition(".")
    return dot + ending


def classes_in(folder: Path) -> list[str]:
    """Return the sorted names of a split's class folders."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and is_kept(entry.name))


@contextmanager
def open_image(file: str | io.BytesIO) -> Iterator[Image.Image]:
    """Open an image with Pillow, without its limits on pixels and on PNG texts and profiles: MindSpore has none.

    Raises:
        OSError, ValueError, SyntaxError: it can't be opened, or read inside the block; these are ``UNREADABLE``.
    """
    before = Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY
    Image.MAX_IMAGE_PIXELS = None
    PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = sys.maxsize
    try:
        with ExitStack() as stack:
            content = stack.enter_context(open_regular(file)) if isinstance(file, str) else file
            yield stack.enter_context(Image.open(content))
    finally:
        Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY = before


def is_cut(content: bytes) -> bool:
    """Return whether a JPEG or PNG file's bytes stop before the marker that ends an image.

    MindSpore decodes such a JPEG with made-up pixels, never returns, or kills the process.
    """
    if content.startswith(_JPEG):
        return content.find(_END_OF_JPEG, _first_scan(content)) < 0
    return content.startswith(_PNG) and _END_OF_PNG not in content


def _first_scan(content: bytes) -> int:
    """Return where a JPEG's first scan begins: after all segments, because these may hold a thumbnail's end marker."""
    at = content.find(b"\xff", 2)
    while 0 <= at < len(content) - 3:
        marker = content[at + 1]
        if marker == _START_OF_SCAN:
            return at
        length = 0 if marker in _WITHOUT_LENGTH else int.from_bytes(content[at + 2 : at + 4], "big")
        at = content.find(b"\xff", at + (1 if marker == 0xFF else 2 + length))
    return len(content)
