"""Somebody's own data: a function gives the samples, dimred gives them order, batches and ranks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import mindspore.dataset as ds
import numpy as np

from dimred.data.image_folder import GivenOrder, epoch_order
from dimred.data.reading import Readable
from dimred.errors import ConfigError, DataError


class Source(Protocol):
    """Samples by number."""

    def __len__(self) -> int:
        """How many there are; the same for every seed."""

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        """(what the network is given, its class); always the same for the same number."""


Factory = Callable[[Path, str, int | None], Source]


class OwnDataset:
    """One split of somebody's own data as batches of (inputs, labels).

    Args:
        factory: (DATA, split, seed) -> the samples of ``train``, ``val`` or ``test``. In training it is called for each
            epoch with another seed, for the augmentation; otherwise with None.
        data: as the user typed it.
        split: its name.
        batch_size: samples in a batch.
        workers: parallel reading workers.
        rank, group_size: of a data-parallel job, whose ranks share out the samples of every batch.
        accumulation: micro-batches of ``batch_size`` in each training batch; the last of an epoch may have fewer.
        sink: of training batches without accumulation, see ``Readable``.

    Raises:
        DataError: the factory fails, or gives no samples of two parts.
    """

    classes: tuple[str, ...] = ()

    def __init__(
        self,
        factory: Factory,
        data: Path,
        split: str,
        *,
        batch_size: int,
        workers: int = 1,
        rank: int = 0,
        group_size: int = 1,
        accumulation: int = 1,
        sink: bool = False,
    ):
        self._factory, self._data, self._split = factory, data, split
        self.batch_size, self.workers = batch_size, workers
        self.rank, self.group_size, self.accumulation = rank, group_size, accumulation
        self.sink = sink
        self._evaluated = self._make(None)
        try:
            self.n_images = len(self._evaluated)
            _, _ = self._evaluated[0]
        except Exception as error:
            raise DataError(
                f"data.dataset gave {type(self._evaluated).__name__} for the split {split!r}, which is no sequence of "
                f"(input, label) pairs ({type(error).__name__}: {error}); it needs __len__ and __getitem__"
            ) from error

    def _make(self, seed: int | None) -> Source:
        try:
            return self._factory(self._data, self._split, seed)
        except Exception as error:
            raise DataError(
                f"data.dataset failed for DATA {str(self._data)!r}, split {self._split!r}, seed {seed}: "
                f"{type(error).__name__}: {error}"
            ) from error

    @property
    def steps_per_epoch(self) -> int:
        """Steps in one training epoch: full micro-batches of all ranks, in groups; what fills none is dropped."""
        return -(-(self.n_images // (self.batch_size * self.group_size)) // self.accumulation)

    def training_epoch(self, seed: int, epoch: int, batch_size: int | None = None) -> Readable:
        """This rank's batches of one epoch, in the order of ``seed`` and ``epoch``, without a remainder."""
        size = batch_size or self.batch_size
        order = epoch_order(self.n_images, seed, epoch, size, self.rank, self.group_size)
        source = self._make(int(np.random.default_rng([seed, epoch, 1]).integers(2**31)))
        if len(source) != self.n_images:
            raise ConfigError(f"data.dataset gave {self.n_images} samples without a seed, and {len(source)} with one")
        batches = self._read(source, order).batch(size * (self.accumulation if batch_size is None else 1))
        return Readable(batches, self.sink)

    def evaluation(self) -> Readable:
        """Every sample once, over all ranks, in order, without augmentation."""
        order = np.arange(self.rank, self.n_images, self.group_size)
        return Readable(self._read(self._evaluated, order).batch(self.batch_size))

    def _read(self, source: Source, order: np.ndarray) -> ds.Dataset:
        return ds.GeneratorDataset(
            _Typed(source),
            ["image", "label"],
            sampler=GivenOrder(order),
            num_parallel_workers=self.workers,
            python_multiprocessing=False,
        )


class _Typed:
    """Samples as arrays MindSpore takes: labels int32."""

    def __init__(self, source: Source):
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, number: int) -> tuple[Any, np.ndarray]:
        sample, label = self._source[int(number)]
        return np.asarray(sample), np.asarray(label, np.int32)
