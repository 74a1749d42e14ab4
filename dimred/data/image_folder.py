"""Read an ImageFolder tree (``<split>/<class>/<image>``) through MindSpore's own data engine.

The same code reads ImageNet and the built-in digits.
"""

import hashlib
import logging
import os
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore.dataset as ds
import numpy as np
from mindspore import dtype as mstype
from mindspore.dataset import transforms, vision

from dimred.data.image_batches import ImageBatches
from dimred.data.image_tree import (
    IMAGE_SUFFIXES,
    UNREADABLE,
    count_in_words,
    image_paths,
    images_in,
    is_cut,
    open_image,
    read_image_tree,
)
from dimred.errors import DataError, shown

_log = logging.getLogger(__name__)

_CHANNELS = 3
_MODES_OF_ERRORS = {"stop": ds.config.ErrorSamplesMode.RETURN, "replace": ds.config.ErrorSamplesMode.REPLACE}
_IMAGENET_RESIZE = 256 / 224


class ImageFolder(ImageBatches):
    """One split of an ImageFolder tree as batches of (images, labels).

    Args:
        folder: ``DATA/<split>``.
        damaged: what to do about an image that can't be decoded: ``stop``, or ``replace`` it with another in its batch.
        options: see ``ImageBatches``. With ``resize`` every image is resized and centre-cropped, which is not needed if
            all have ``image_size``; ``random_resized_crop`` does both at random instead.

    Raises:
        DataError: from ``read_image_tree``; or the name of the folder or of a class is not UTF-8.

    Attributes:
        passed_over: see ``ImageTree``.

    Shapes:
        images (batch_size, 3, image_size, image_size) float32, labels (batch_size,) int32.
    """

    def __init__(self, folder: Path, *, damaged: str = "stop", **options: Any):
        super().__init__(**options)
        self.folder = folder
        self.damaged = damaged
        self.classes, self.n_images, self._suffixes, self.passed_over, self._numbers = read_image_tree(folder)
        _check_names(folder, self.classes)
        if len(self.mean) != _CHANNELS:
            raise DataError(
                f"data.mean and data.std have {len(self.mean)} value, but the images of class folders are decoded to "
                f"{_CHANNELS} channels; give one value for each channel"
            )
        size = self.image_size
        self.input_shape = (_CHANNELS, size, size)
        to_size = [vision.Resize(round(size * _IMAGENET_RESIZE)), vision.CenterCrop(size)] if self.resize else []
        self._set_operations([vision.Decode(), *to_size], vision.RandomCropDecodeResize(size))

    def check_use(self, n_classes: int, *, trains_classes: bool, measures_classes: bool) -> None:
        """Warn of entries that are passed over, and, unless images are resized, check one image's size in each class.

        Raises:
            DataError: an image has a different size, and would reach the network as it is.
        """
        if self.passed_over:
            self._warn_of_passed_over()
        if self.resize:
            return
        for width, height in self.sizes():
            if (width, height) != (self.image_size, self.image_size):
                remedy = f", or data.image_size={width} if all have that size" if width == height else ""
                raise DataError(
                    f"data.resize is false, but {str(self.folder)!r} has images of {width} x {height} pixels, and "
                    f"data.image_size is {self.image_size}: unless augmented, they would reach the network as they "
                    f"are; --set data.resize=true{remedy}"
                )

    def _warn_of_passed_over(self) -> None:
        _log.warning(
            f"{str(self.folder)!r}: {count_in_words(self.passed_over)} passed over; only images in the class "
            f"folders themselves are read, and only {', '.join(IMAGE_SUFFIXES)}: convert or move them, if they "
            "belong to the data"
        )

    def digest(self) -> str:
        """Return a digest of every image's class, name and size in bytes, in hexadecimal."""
        digest = hashlib.sha256()
        for name in self.classes:
            images = sorted((entry.name, entry.stat().st_size) for entry in images_in(self.folder / name))
            digest.update(os.fsencode("".join(f"{name}/{image}\0{size}\n" for image, size in images)))
        return digest.hexdigest()

    def sample_names(self) -> list[str]:
        """Return the path of each image below the split's folder, in the split's order."""
        paths = image_paths(self.folder, self.classes)
        return [paths[number] for number in self._in_split(np.arange(self.n_images))]

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Yield width and height in pixels of one image in each class; images that can't be read are left out."""
        for name in self.classes:
            try:
                with open_image(next(images_in(self.folder / name)).path) as image:
                    yield image.size
            except (StopIteration, *UNREADABLE):
                continue

    def _read(self, order: np.ndarray, image_operations: list[Any]) -> ds.Dataset:
        ds.config.set_error_samples_mode(_MODES_OF_ERRORS[self.damaged])
        try:
            images = ds.ImageFolderDataset(
                str(self.folder),
                num_parallel_workers=self.workers,
                sampler=ds.SubsetSampler(order if self._numbers is None else self._numbers[order]),
                extensions=self._suffixes,
                class_indexing={name: index for index, name in enumerate(self.classes)},
            )
        except ValueError as error:  # raised for a folder that has just disappeared
            raise DataError(f"the data can't be read: {shown(str(error), 300)}") from None
        images = images.map(_check_whole, "image", num_parallel_workers=self.workers, python_multiprocessing=False)
        images = images.map(image_operations, "image", num_parallel_workers=self.workers)
        return images.map(transforms.TypeCast(mstype.int32), "label", num_parallel_workers=1)


def _check_whole(content: np.ndarray) -> np.ndarray:
    """Return a file's bytes; raise ValueError if it is cut, because MindSpore's decoder does not always notice."""
    if is_cut(content.tobytes()):
        raise ValueError("the file is cut: it has no marker that ends the image")
    return content


def _check_names(folder: Path, classes: Sequence[str]) -> None:
    """Check that MindSpore can take all names, and that no two classes have the same name in two Unicode forms."""
    for path in (folder, *(folder / name for name in classes)):
        if os.fsencode(path) != str(path).encode(errors="surrogatepass"):
            raise _error_of_name(path)
    names: dict[str, str] = {}
    for name in classes:
        other = names.setdefault(unicodedata.normalize("NFC", name), name)
        if other != name:
            raise DataError(
                f"{str(folder)!r} has a class {name!r} in two Unicode forms, {other!a} and {name!a}; move "
                "the images of one into the other"
            )


def _error_of_name(path: Path) -> DataError:
    """Return the error for a folder whose name on the disk is not what Python reads, in UTF-8."""
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:
        return DataError(f"DATA has the folder {str(path)!r}, whose name is not UTF-8, as MindSpore needs; rename it")
    return DataError(
        f"DATA has the folder {str(path)!r}, whose name is UTF-8, but in this locale Python reads names as "
        f"{sys.getfilesystemencoding()}; set LC_ALL=C.UTF-8, or PYTHONUTF8=1"
    )


def split_folder(root: Path, split: str) -> Path:
    """Return a split's folder, ``root/split``.

    Without a folder ``val``, it is ``validation_preprocess`` if that exists: its name in many copies of ImageNet.
    """
    other = root / "validation_preprocess"
    return other if split == "val" and not (root / split).exists() and other.is_dir() else root / split


def check_splits(root: Path, splits: Sequence[str]) -> None:
    """Raise DataError unless ``root`` has a folder for each split."""
    if not root.is_dir():
        raise DataError(f"DATA is {str(root)!r}, which is not a folder; name the folder that holds {', '.join(splits)}")
    missing = [repr(split) for split in splits if not split_folder(root, split).is_dir()]
    if missing:
        raise DataError(
            f"DATA is {str(root)!r}, which has no folder {' and no '.join(missing)}; expected "
            "DATA/<split>/<class>/<image>, and data.eval_split names the split to report on"
        )


def check_classes(root: Path, classes: Mapping[str, Sequence[str]], n_classes: int) -> None:
    """Check that all splits of ``root`` have the same classes, and that these fit the network.

    Args:
        root: DATA, as the user typed it.
        classes: split -> names of its class folders.
        n_classes: outputs of the network.

    Raises:
        DataError: a split has different classes, or there are more classes than outputs.
    """
    first, *others = classes
    for split in others:
        if differences := sorted(set(classes[first]) ^ set(classes[split])):
            with_it, without = (first, split) if differences[0] in classes[first] else (split, first)
            raise DataError(
                f"{with_it!r} in {str(root)!r} has a class {_in_code_points(differences[0])}, and {without!r} does "
                f"not (classes that differ: {len(differences)}); give every split the same class folders"
            )
    n_here = len(classes[first])
    if n_here > n_classes:
        raise DataError(
            f"{str(root)!r} has {n_here} classes, but the model has n_classes {n_classes}: raise it for a new network; "
            f"if WEIGHTS were trained with {n_classes}, this DATA does not belong to them"
        )


def _in_code_points(name: str) -> str:
    """Return a name in quotes, followed by its code points if another name may look the same."""
    return repr(name) if name.isascii() else f"{name!r} ({name!a})"
