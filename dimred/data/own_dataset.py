"""Somebody's own data: a function gives the samples, dimred gives them order, batches and ranks."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mindspore.dataset as ds
import numpy as np

from dimred.data.batches import Batches, GivenOrder
from dimred.errors import ConfigError, DataError, shown

# What has a length and gives by number: (what the network is given, its label), always the same for the same number.
Source = Sequence[tuple[Any, Any]]
Factory = Callable[[Path, str, int | None], Source]


class OwnDataset(Batches):
    """One split of somebody's own data as batches of (inputs, labels).

    Labels that are whole numbers, of any shape, leave as int32; other numbers leave as float32.

    Args:
        factory: (DATA, split, seed) -> the samples of ``train``, ``val`` or ``test``. In training it is called for each
            epoch with another seed, for the augmentation, and gives the same number each time; otherwise with None.
        data: as the user typed it.
        split: its name.
        options: see ``Batches``.

    Raises:
        DataError: the factory fails, gives no samples of two parts, or labels that are no numbers.
    """

    def __init__(self, factory: Factory, data: Path, split: str, **options: Any):
        super().__init__(**options)
        self._factory, self._data, self._split = factory, data, split
        self._evaluated = self._make(None)
        try:
            self.n_images = len(self._evaluated)
            _, label = self._evaluated[0]
        except Exception as error:
            raise DataError(
                f"data.dataset gave {type(self._evaluated).__name__} for the split {split!r}, which is no sequence of "
                f"(input, label) pairs ({type(error).__name__}: {error}); it needs __len__ and __getitem__"
            ) from error
        self._first_label = np.asarray(label)
        if self._first_label.dtype.kind not in "biuf":
            raise DataError(
                f"data.dataset gave the label {shown(label)}, which is no number; number the classes from 0"
            )

    def check_classes(self, n_classes: int) -> None:
        """Check, by the first sample, that the labels are something a classifier can learn.

        Raises:
            DataError: they are neither whole numbers nor, in ``train``, one probability for each class.
        """
        label = self._first_label
        if label.dtype.kind == "f" and (self._split != "train" or label.shape[:1] != (n_classes,)):
            raise DataError(
                f"data.dataset gave a label of type {label.dtype} and shape {label.shape} for the split "
                f"{self._split!r}, which can't be classified; give the class as a whole number (in 'train' also one "
                f"probability for each of the {n_classes} classes), or train a regression in a loop of your own"
            )

    def _make(self, seed: int | None) -> Source:
        try:
            return self._factory(self._data, self._split, seed)
        except Exception as error:
            raise DataError(
                f"data.dataset failed for DATA {str(self._data)!r}, split {self._split!r}, seed {seed}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _training_samples(self, order: np.ndarray, seed: int, epoch: int) -> ds.Dataset:
        source = self._make(int(np.random.default_rng([seed, epoch, 1]).integers(2**31)))
        if len(source) != self.n_images:
            raise ConfigError(f"data.dataset gave {self.n_images} samples without a seed, and {len(source)} with one")
        return self._read(source, order)

    def _evaluation_samples(self, order: np.ndarray) -> ds.Dataset:
        return self._read(self._evaluated, order)

    def _read(self, source: Source, order: np.ndarray) -> ds.Dataset:
        return ds.GeneratorDataset(
            _Typed(source, np.float32 if self._first_label.dtype.kind == "f" else np.int32),
            ["image", "label"],
            sampler=GivenOrder(order),
            num_parallel_workers=self.workers,
            python_multiprocessing=False,
        )


class _Typed:
    """Samples as arrays MindSpore takes; all labels of one type."""

    def __init__(self, source: Source, label_type: type[np.number]):
        self._source, self._type = source, label_type

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        sample, label = self._source[int(number)]
        label = np.asarray(label)
        if self._type is np.int32 and label.dtype.kind == "f":
            raise DataError(f"sample {number} has the label {shown(label)}, where the first sample's is a whole number")
        return np.asarray(sample), label.astype(self._type, copy=False)
