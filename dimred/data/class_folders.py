"""An ImageFolder tree on disk: its splits, its classes, and whether its images are still those a run began with."""

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dimred.data.image_tree import IMAGE_SUFFIXES
from dimred.errors import DataError

__all__ = ["ClassFolders", "check_data", "class_names", "split_folder"]


def class_names(split_folder: Path) -> list[str]:
    """The classes of one split, sorted by name, after checking that each has at least one image.

    Raises:
        DataError: the folder is missing, holds no class folders, or a class has no image.
    """
    if not split_folder.is_dir():
        raise DataError(f"no such data folder: {str(split_folder)!r}; expected <DATA>/<split>/<class>/<image>")
    classes = sorted(entry.name for entry in split_folder.iterdir() if entry.is_dir())
    if not classes:
        raise DataError(f"data folder {str(split_folder)!r} has no class folders; expected <class>/<image> in it")
    for name in classes:
        if not any(entry.suffix.lower() in IMAGE_SUFFIXES for entry in (split_folder / name).iterdir()):
            raise DataError(
                f"class {name!r} in {str(split_folder)!r} has no images ({', '.join(IMAGE_SUFFIXES)}); "
                "add some, or remove the folder"
            )
    return classes


def split_folder(root: Path, split: str) -> Path:
    """``root/split``; for ``val`` also ``root/validation_preprocess``, as ImageNet's is often called."""
    other = root / "validation_preprocess"
    return other if split == "val" and not (root / split).exists() and other.is_dir() else root / split


def check_data(root: Path, splits: Sequence[str], n_classes: int) -> None:
    """Check, before any expensive work, that the splits exist, agree on their classes and fit the network.

    Raises:
        DataError: names the first split that does not.
    """
    if not root.is_dir():
        raise DataError(f"DATA is {str(root)!r}, which is not a folder; name the folder that holds {', '.join(splits)}")
    expected = class_names(split_folder(root, splits[0]))
    for split in splits[1:]:
        found = class_names(split_folder(root, split))
        if found != expected:
            differing = sorted(set(expected) ^ set(found))
            raise DataError(
                f"{splits[0]!r} and {split!r} in {str(root)!r} differ in {len(differing)} classes, "
                f"the first is {differing[0]!r}"
            )
    if len(expected) > n_classes:
        raise DataError(f"{str(root)!r} has {len(expected)} classes, but the model has n_classes {n_classes}; raise it")


class _Class(NamedTuple):
    changed_at: int  # nanoseconds
    names: int  # a checksum of the images' names
    n_images: int


class ClassFolders:
    """The images of one split, as they are now.

    An image is drawn by its number, so one that is gone or new shifts all that follow it. Whether there is one is
    seen at the cost of one look at each class folder: its time of change tells whether its names must be read again.

    Args:
        folder: of the split.
        classes: names of the class folders in it.

    Attributes:
        n_images: in all classes.
        suffixes: of the images, as they are written (MindSpore tells .JPEG from .jpeg).
    """

    def __init__(self, folder: Path, classes: Sequence[str]):
        self._folder = folder
        self._suffixes: set[str] = set()
        self._classes = {name: self._look(name) for name in classes}
        self.n_images = sum(entry.n_images for entry in self._classes.values())
        self.suffixes = sorted(self._suffixes)

    def check_unchanged(self) -> None:
        """Raises DataError where images came or went since the beginning, or the folder can't be read."""
        for name, before in self._classes.items():
            try:
                changed = (self._folder / name).stat().st_mtime_ns != before.changed_at
                now = self._look(name) if changed else before
            except OSError as error:
                raise DataError(f"{self._folder / name} can't be read ({error.strerror})") from None
            if now.names != before.names:
                raise DataError(
                    f"the images in {self._folder / name} are not those that the run began with ({before.n_images} "
                    f"then, {now.n_images} now), so that others would be drawn; restore them, or begin a new run"
                )
            self._classes[name] = now

    def _look(self, name: str) -> _Class:
        folder = self._folder / name
        changed_at = folder.stat().st_mtime_ns  # before the names: a change meanwhile is seen next time
        images = sorted(entry for entry in folder.iterdir() if entry.suffix.lower() in IMAGE_SUFFIXES)
        self._suffixes.update(image.suffix for image in images)
        return _Class(changed_at, zlib.crc32(os.fsencode("\0".join(image.name for image in images))), len(images))
