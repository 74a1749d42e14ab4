"""A user's own data: their function gives the samples; dimred orders, batches and shares them out."""

import hashlib
import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mindspore.dataset as ds
import numpy as np

from dimred.data.batches import Batches, DamagedError, Readable, is_spare
from dimred.data.inputs import not_finite, plain_input
from dimred.data.labels import check_labels
from dimred.errors import DataError, shown

# Errors in a user's code that reading again would not mend; any other error may come from a disk or a network.
_MISTAKES = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    NameError,
    ArithmeticError,
    AssertionError,
    NotImplementedError,
)
# A sequence of samples. Each is a tuple of the network's inputs, one or several, and last the label. The same index
# must give the same sample each time. One thread reads it, unless the user sets ``data.workers``.
Source = Sequence[tuple[Any, ...]]
Factory = Callable[..., Source]
_Kinds = tuple[type[Exception], ...]


class OwnDataset(Batches):
    """One split of a user's own data as batches of its inputs and, last, the labels.

    Labels that are whole numbers, of any shape, become int32; other numbers become float32. A number that does not fit
    into that type is refused. Every part of a sample is copied, so the source may reuse one array.

    Args:
        factory: (DATA, split, seed) -> the samples of ``train``, ``val`` or ``test``. For training batches it is called
            once an epoch with a different seed, for the augmentation, and must return the same number of samples each
            time; otherwise the seed is None. A parameter ``epoch`` gets the epoch's number, so that each epoch can read
            different samples: 1, 2, ... in stage 1, 1,000,001, ... in stage 2; None for all other batches.
        data: DATA, as the user typed it.
        split: name of the split.
        options: see ``Batches``.

    Raises:
        DataError: the factory fails or gives no samples, or the first sample is not a tuple with a number as its label.
    """

    def __init__(self, factory: Factory, data: Path, split: str, **options: Any):
        super().__init__(**options)
        self._factory = factory
        self._data = data
        self._split = split
        self._n_classes: int | None = None
        self._plain_source = self._make(None, None)
        self.n_images = len(self._plain_source)
        if self.n_images == 0:
            raise DataError(f"data.dataset gave no samples for the split {split!r}; give at least one")
        *inputs, self._first_label = _parts_of(self._plain_source, split, 0)
        self._columns = [*(f"input {number}" for number in range(1, len(inputs) + 1)), "label"]

    def check_use(self, n_classes: int, *, trains_classes: bool, measures_classes: bool) -> None:
        """Check on the first sample that its label can train, or measure, a classifier.

        With a classifier's loss, a whole number that is not a class is also refused when its sample is read.

        Raises:
            DataError: the label consists neither of whole numbers nor, in ``train``, of a probability for each class.
        """
        self._n_classes = n_classes if trains_classes else None
        label = self._first_label
        is_train = self._split == "train"
        if label.dtype.kind != "f" or not (trains_classes or measures_classes):
            return
        if not is_train or label.shape[:1] != (n_classes,):
            raise DataError(
                f"data.dataset gave a label of type {label.dtype} and shape {label.shape} for the split "
                f"{self._split!r}, which is not a class; give the class as a whole number (in 'train' also one "
                f"probability for each of the {n_classes} classes), or, for a regression, set loss and metric"
            )

    def fault_of_step(self, seed: int, epoch: int, step: int) -> str | None:
        """Read a step's samples again, and name the first one with an input that is not finite."""
        numbers = self.numbers_of_step(seed, epoch, step)
        samples = Readable(self._training_samples(numbers, seed, epoch)).create_tuple_iterator(output_numpy=True)
        for number, (*inputs, _) in zip(numbers, samples, strict=True):
            for position, values in enumerate(inputs, start=1):
                found = not_finite(values)
                if found is not None:
                    return f"sample {number} of the split {self._split!r} has {found} in input {position}"
        return None

    def digest(self) -> str:
        """Return a digest of the number of samples, the first one and the last one, in hexadecimal.

        Raises:
            DataError: the last sample can't be read.
        """
        digest = hashlib.sha256(str(self.n_images).encode())
        for number in (0, self.n_images - 1):
            for part in _parts_of(self._plain_source, self._split, number):
                digest.update(f"{part.dtype} {part.shape}".encode() + part.tobytes())
        return digest.hexdigest()

    def _make(self, seed: int | None, epoch: int | None) -> Source:
        failure = f"data.dataset failed for DATA {str(self._data)!r}, split {self._split!r}, seed {seed}"
        with _naming_faults(failure, "fix the function, which must return a sequence of samples"):
            options = {"epoch": epoch} if "epoch" in inspect.signature(self._factory).parameters else {}
            source = self._factory(self._data, self._split, seed, **options)
            len(source)  # so that a source without a length is refused here, with or without a seed
        return source

    def _training_samples(self, order: np.ndarray, seed: int, epoch: int) -> ds.Dataset:
        epoch_seed = int(np.random.default_rng([seed, epoch, 1]).integers(2**31))
        source = self._make(epoch_seed, None if is_spare(epoch) else epoch)
        n_plain = len(self._plain_source)
        if len(source) != n_plain:
            raise DamagedError(
                f"data.dataset gave {n_plain} samples without a seed, and {len(source)} with one; give the same number"
            )
        return self._read(source, order)

    def _evaluation_samples(self, order: np.ndarray) -> ds.Dataset:
        return self._read(self._plain_source, order)

    def _read(self, source: Source, order: np.ndarray) -> ds.Dataset:
        label_type = np.float32 if self._first_label.dtype.kind == "f" else np.int32
        return ds.GeneratorDataset(
            _Samples(source, self._split, len(self._columns), label_type, self._n_classes),
            self._columns,
            sampler=ds.SubsetSampler(order),
            num_parallel_workers=self.workers,
            python_multiprocessing=False,
        )


@contextmanager
def _naming_faults(failure: str, remedy: str, kinds: _Kinds = (Exception,)) -> Iterator[None]:
    """Turn an error from the user's code inside the block into a DataError that names its line.

    If the error is a mistake in that code, it becomes a DamagedError.
    """
    try:
        yield
    except kinds as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if last.filename == __file__ else f", in {last.filename}:{last.lineno}"
        why = f"{type(error).__name__}: {shown(str(error), 300)}{where}"
        kind = DamagedError if isinstance(error, _MISTAKES) else DataError
        raise kind(f"{failure} ({why}); {remedy}") from error


def _parts_of(source: Source, split: str, number: int, kinds: _Kinds = (Exception,)) -> tuple[np.ndarray, ...]:
    """Read a sample, and return a copy of each of its parts: inputs by ``plain_input``, and a numeric label.

    Raises:
        DataError: the source raises an error of these ``kinds``, or returns no such sample.
    """
    failure = f"data.dataset failed to give sample {number} of the split {split!r}"
    with _naming_faults(failure, "fix the function", kinds):
        sample = source[number]
        if not isinstance(sample, tuple | list) or len(sample) < 2:
            raise TypeError(f"it is {shown(sample)}, not a tuple (input, label) or (input, ..., label)")
        *inputs, label = map(np.array, sample)
    if label.dtype.kind not in "biuf":
        raise DataError(
            f"sample {number} of the split {split!r} has the label {shown(label.tolist())}, which is not a number that "
            "NumPy has a type for; number the classes from 0"
        )
    return *map(plain_input, inputs), label


class _Samples:
    """Samples as arrays that MindSpore takes; all labels have one type."""

    def __init__(self, source: Source, split: str, n_parts: int, label_type: type[np.number], n_classes: int | None):
        self._source = source
        self._split = split
        self._n_parts = n_parts
        self._type = label_type
        self._n_classes = n_classes

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, number: int) -> tuple[np.ndarray, ...]:
        name = f"sample {number} of the split {self._split!r}"
        *inputs, label = _parts_of(self._source, self._split, int(number), _MISTAKES)
        if len(inputs) + 1 != self._n_parts:
            raise DataError(
                f"{name} has {len(inputs) + 1} parts, but the first has {self._n_parts}; give every sample the same "
                "number"
            )
        for values in inputs:
            if values.dtype.kind not in "biufSU":
                raise DataError(f"{name} has the input {shown(values.tolist())}, which is not an array of numbers")
        self._check_label(label, name)
        return *inputs, label.astype(self._type)

    def _check_label(self, label: np.ndarray, name: str) -> None:
        """Check that a label has the first label's kind, is a class if required, and fits its type."""
        is_whole = self._type is np.int32
        if is_whole and label.dtype.kind == "f":
            raise DataError(
                f"{name} has the label {shown(label)}, but the first sample's is a whole number; give all samples "
                "whole numbers, or all floats"
            )
        if is_whole and self._n_classes is not None:
            check_labels(label, self._n_classes, name)
        limits = np.iinfo(np.int32) if is_whole else np.finfo(np.float32)
        beyond = label[np.isfinite(label) & ((label < limits.min) | (label > limits.max))]
        if beyond.size:
            raise DataError(
                f"{name} has the label {beyond[0]}, which is beyond {np.dtype(self._type)}, the type that labels like "
                "the first sample's get; scale the labels, or give all as floats"
            )
