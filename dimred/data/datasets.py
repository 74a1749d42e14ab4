"""The kinds of data that a configuration can name: what DATA must hold, and how its splits are read."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dimred.data.batches import Batches
from dimred.data.held_images import HeldImages
from dimred.data.image_folder import ImageFolder, check_splits, split_folder
from dimred.data.own_dataset import Factory, OwnDataset
from dimred.data.published_files import PUBLISHED, PublishedFiles, Samples
from dimred.errors import DataError

_log = logging.getLogger(__name__)

_OF_IMAGES = ("image_size", "mean", "std", "augmentation", "resize", "pad", "flip")


class Dataset(ABC):
    """A kind of data.

    Attributes:
        keys: the keys that it reads from the configuration's section ``data``, besides those common to all data.
        kept_keys: the keys whose values a stage 2 must share with its stage 1.
        n_threads: the number of threads that read it by default.
    """

    keys: ClassVar[tuple[str, ...]] = ()
    kept_keys: ClassVar[tuple[str, ...]] = ()
    n_threads: ClassVar[int] = 2

    @abstractmethod
    def check(self, data: Path, splits: Sequence[str]) -> None:
        """Raise DataError unless DATA has what these splits are read from."""

    @abstractmethod
    def split(self, data: Path, split: str, **options: Any) -> Batches:
        """Build one split.

        Args:
            data: DATA, as the user typed it.
            split: ``train``, ``val`` or ``test``.
            options: the values of ``keys``, and the options of ``Batches``.

        Raises:
            DataError: the split can't be used.
        """

    def describe(self, image_size: int) -> str:
        """Return the size of the input in a few words, for a table; empty if unknown."""
        return f"{image_size} px"


class ClassFolders(Dataset):
    """Class folders of images, ``DATA/<split>/<class>/<image>``."""

    keys = (*_OF_IMAGES, "damaged")
    kept_keys = ("mean", "std")

    def check(self, data: Path, splits: Sequence[str]) -> None:
        """Check that there is a folder for each split."""
        check_splits(data, splits)

    def split(self, data: Path, split: str, **options: Any) -> Batches:
        """Build an ``ImageFolder``."""
        return ImageFolder(split_folder(data, split), **options)


class PublishedImages(Dataset):
    """Published image files; the split ``val`` is drawn from the part to train on.

    Args:
        files: the files.
    """

    keys = (*_OF_IMAGES, "val_fraction", "val_seed")
    kept_keys = ("mean", "std", "val_fraction", "val_seed")

    def __init__(self, files: PublishedFiles):
        self._files = files

    def check(self, data: Path, splits: Sequence[str]) -> None:
        """Check that the files of these splits are there."""
        self._files.check(data, sorted({_part_of(split) for split in splits}))

    def split(self, data: Path, split: str, **options: Any) -> Batches:
        """Build ``HeldImages``; log how many samples ``train`` leaves to ``val``."""
        samples = self._files.read(data, _part_of(split))
        val_fraction = options.pop("val_fraction")
        val_seed = options.pop("val_seed")
        if split != "test":
            numbers = numbers_of_split(split, len(samples.labels), val_fraction, val_seed)
            n_others = len(samples.labels) - len(numbers)
            if split == "train" and n_others:
                _log.info(
                    f"'train' has {len(numbers):,} of {self._files.title}'s {len(samples.labels):,} samples to train "
                    f"on; the other {n_others:,} are 'val', drawn with data.val_seed {val_seed}"
                )
            samples = Samples(samples.images[numbers], samples.labels[numbers])
        return HeldImages(samples, self._files.class_names(data), **options)


def _part_of(split: str) -> str:
    """Return the published part that a split is read from."""
    return "test" if split == "test" else "train"


class OwnData(Dataset):
    """A user's own samples.

    Args:
        find_factory: finds the user's function; see ``OwnDataset``.
    """

    n_threads = 1  # the user's code may not be thread-safe

    def __init__(self, find_factory: Callable[[], Factory]):
        self._find_factory = find_factory

    def check(self, data: Path, splits: Sequence[str]) -> None:
        """Check that the function can be found; only the function knows what DATA is."""
        self._find_factory()

    def split(self, data: Path, split: str, **options: Any) -> Batches:
        """Build an ``OwnDataset``."""
        return OwnDataset(self._find_factory(), data, split, **options)

    def describe(self, image_size: int) -> str:
        """Return an empty text."""
        return ""


def numbers_of_split(split: str, n_samples: int, val_fraction: float, val_seed: int) -> np.ndarray:
    """Return the sample numbers in ``train`` or ``val``, in rising order; each sample is in exactly one of the two.

    Raises:
        DataError: the split has no sample.
    """
    n_val = round(val_fraction * n_samples)
    order = np.random.default_rng(val_seed).permutation(n_samples)
    numbers = np.sort(order[:n_val] if split == "val" else order[n_val:])
    if not len(numbers):
        raise DataError(
            f"data.val_fraction is {val_fraction}, which leaves no sample for the split {split!r}; set another one "
            "or, for a run without 'val', set data.eval_split=test"
        )
    return numbers


DATASETS: dict[str, Dataset] = {
    "image_folder": ClassFolders(),
    **{name: PublishedImages(files) for name, files in PUBLISHED.items()},
}
"""The kinds of data that are known by name."""
