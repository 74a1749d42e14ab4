"""MNIST's and CIFAR's files as published, read without MindSpore and checked to the last byte.

Data in MNIST's format, such as Fashion-MNIST, are read in the same way.
"""

import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dimred.errors import DataError
from dimred.io.regular_file import read_regular

PARTS = ("train", "test")
_SIDE = 32  # pixels of CIFAR's images
_PIXELS = 3 * _SIDE**2
_UNSIGNED_BYTES = 8  # code of the type in an idx file's first four bytes
_UNREADABLE = (OSError, EOFError, zlib.error)


class Samples(NamedTuple):
    """One published part's samples."""

    images: np.ndarray  # uint8 (n, height, width, channels)
    labels: np.ndarray  # int32 (n,), classes from 0


@dataclass(frozen=True)
class PublishedFiles(ABC):
    """Published files with a part to train on and a part to test on.

    Attributes:
        title: the name of the data, for messages.
        n_classes: the number of classes.
    """

    title: str
    n_classes: int

    def check(self, data: Path, parts: Iterable[str] = PARTS) -> None:
        """Check that DATA is a folder with the files of these parts, without reading them.

        Raises:
            DataError: it is not; the message names what is missing.
        """
        if not data.is_dir():
            raise DataError(f"DATA is {str(data)!r}, which is not a folder; name the folder with {self.title}'s files")
        for part in parts:
            for name in self.names(part):
                self.find(data, name)

    def find(self, data: Path, name: str) -> Path:
        """Return the path of a published file; DataError if it is not there."""
        path = data / name
        if path.is_file():
            return path
        raise DataError(f"DATA is {str(data)!r}, which has no file {name}; {self.remedy(data)}")

    def class_names(self, data: Path) -> list[str]:
        """Return the names of the classes, or their numbers if they have no names."""
        return [str(number) for number in range(self.n_classes)]

    @abstractmethod
    def names(self, part: str) -> list[str]:
        """Return the names of a part's files; ``part`` is ``train`` or ``test``."""

    @abstractmethod
    def remedy(self, data: Path) -> str:
        """Return what to do about a missing file."""

    @abstractmethod
    def read(self, data: Path, part: str) -> Samples:
        """Read the samples of a part, ``train`` or ``test``, in the files' order.

        Raises:
            DataError: a file is missing, is cut, has bytes after its end, is in a different format, or has a label that
                is no class; the message names the file.
        """

    def checked(self, path: Path, labels: np.ndarray) -> np.ndarray:
        """Return a file's labels as int32; DataError if one is not a class."""
        if labels.size and (largest := labels.max()) >= self.n_classes:
            raise DataError(
                f"{str(path)!r} has the label {largest} at sample {labels.argmax()}, but {self.title} has the classes "
                f"0 to {self.n_classes - 1}; restore the file"
            )
        return labels.astype(np.int32)


@dataclass(frozen=True)
class IdxFiles(PublishedFiles):
    """MNIST's four idx files, plain or as ``.gz``; if both are there, the plain one is read."""

    def names(self, part: str) -> list[str]:
        """Return the names of the image file and the label file."""
        prefix = {"train": "train", "test": "t10k"}[part]
        return [f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"]

    def find(self, data: Path, name: str) -> Path:
        """Return the path of a published file, or of its ``.gz``; DataError if neither is there."""
        packed = data / f"{name}.gz"
        if packed.is_file() and not (data / name).is_file():
            return packed
        return super().find(data, name)

    def remedy(self, data: Path) -> str:
        """Name the four files."""
        names = self.names("train") + self.names("test")
        return f"name the folder with {self.title}'s files as they are published, {', '.join(names)}, or their .gz"

    def read(self, data: Path, part: str) -> Samples:
        """Read images and labels; see ``PublishedFiles.read``."""
        of_images, of_labels = (self.find(data, name) for name in self.names(part))
        images = _read_idx(of_images, n_axes=3)
        labels = _read_idx(of_labels, n_axes=1)
        if len(images) != len(labels):
            raise DataError(
                f"{str(of_images)!r} has {len(images):,} images, but {str(of_labels)!r} has {len(labels):,} labels; "
                "they do not belong together: restore both"
            )
        return Samples(images[..., np.newaxis], self.checked(of_labels, labels))


def _read_idx(path: Path, n_axes: int) -> np.ndarray:
    """Read an idx file of unsigned bytes with this number of axes; the file may be gzipped.

    Such a file has the bytes 0, 0, 8, n_axes, the axes' lengths as big-endian int32, and then the numbers
    (http://yann.lecun.com/exdb/mnist, "the idx file format").
    """
    try:
        content = read_regular(path)
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except _UNREADABLE as error:
        raise DataError(f"{str(path)!r} can't be read ({error}); restore it, or download it again") from error
    if content[:4] != bytes([0, 0, _UNSIGNED_BYTES, n_axes]):
        kind = "labels" if n_axes == 1 else "images"
        raise DataError(
            f"{str(path)!r} begins with the bytes {content[:4].hex(' ') or '(none)'}, but an idx file of {kind} begins "
            f"with 00 00 08 0{n_axes}; restore it, or download it again"
        )
    start = 4 + 4 * n_axes
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    _check_length(path, len(content), start + int(np.prod(shape, dtype=object)))
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


@dataclass(frozen=True)
class CifarFiles(PublishedFiles):
    """CIFAR's binary version: records of label bytes and 3 x 32 x 32 pixels, first all red, then green, blue.

    Attributes:
        train, test: names of the files.
        records: records in each file; nothing else in the format shows that a file is whole.
        label_bytes: label bytes in a record; the last one is the class.
        names_file: name of the file with the class names, one per line.
        pickled: name of a file that only the Python version has.
        archive: name of the binary version's published archive.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    records: dict[str, int]
    label_bytes: int
    names_file: str
    pickled: str
    archive: str

    def names(self, part: str) -> list[str]:
        """Return the names of a part's files."""
        return list({"train": self.train, "test": self.test}[part])

    def remedy(self, data: Path) -> str:
        """Name the archive; say so if the folder has the pickled version."""
        if (data / self.pickled).is_file():
            return (
                f"its file {self.pickled} is from the Python version, which is pickled, and nothing is unpickled here: "
                f"unpack the binary version, {self.archive}, and name that folder"
            )
        return f"unpack {self.title}'s binary version, {self.archive}, and name the folder with its .bin files"

    def class_names(self, data: Path) -> list[str]:
        """Return the class names from the file beside the images, or their numbers if it is missing.

        Raises:
            DataError: the file does not have one name for each class, all different.
        """
        path = data / self.names_file
        if not path.is_file():
            return super().class_names(data)
        names = read_regular(path).decode(errors="replace").split()
        if len(names) != self.n_classes or len(set(names)) != len(names):
            raise DataError(
                f"{str(path)!r} has {len(set(names))} different names, but {self.title} has {self.n_classes} classes; "
                "restore the file, or remove it to have the classes' numbers as names"
            )
        return names

    def read(self, data: Path, part: str) -> Samples:
        """Read the records in all of the part's files; see ``PublishedFiles.read``."""
        images = []
        labels = []
        for name in self.names(part):
            path = self.find(data, name)
            try:
                content = read_regular(path)
            except OSError as error:
                raise DataError(f"{str(path)!r} can't be read ({error}); restore it, or download it again") from error
            length = self.label_bytes + _PIXELS
            _check_length(path, len(content), self.records[part] * length)
            records = np.frombuffer(content, np.uint8).reshape(-1, length)
            labels.append(self.checked(path, records[:, self.label_bytes - 1]))
            images.append(records[:, self.label_bytes :].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1))
        return Samples(np.concatenate(images), np.concatenate(labels))


def _check_length(path: Path, n_bytes: int, expected: int) -> None:
    if n_bytes != expected:
        fault = "it is cut" if n_bytes < expected else "something follows its end"
        raise DataError(
            f"{str(path)!r} has {n_bytes:,} bytes, but such a file has {expected:,}: {fault}; restore it, or "
            "download it again"
        )


PUBLISHED: dict[str, PublishedFiles] = {
    "mnist": IdxFiles("MNIST", 10),
    "cifar10": CifarFiles(
        title="CIFAR-10",
        n_classes=10,
        train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        test=("test_batch.bin",),
        records={"train": 10_000, "test": 10_000},
        label_bytes=1,
        names_file="batches.meta.txt",
        pickled="data_batch_1",
        archive="cifar-10-binary.tar.gz",
    ),
    "cifar100": CifarFiles(
        title="CIFAR-100",
        n_classes=100,
        train=("train.bin",),
        test=("test.bin",),
        records={"train": 50_000, "test": 10_000},
        label_bytes=2,
        names_file="fine_label_names.txt",
        pickled="meta",
        archive="cifar-100-binary.tar.gz",
    ),
}
"""The published data known by name."""
