"""An epoch's batches: samples, order, each rank's part, and reading again after a fault."""

import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import data_sink, dataset

from dimred.data.mixing import Mixing
from dimred.errors import DataError, shown

_log = logging.getLogger(__name__)

# An epoch's order depends only on the seed and the epoch's number, so that it can be replayed. Every use has its own
# numbers, so that no two share an order:
#   1, 2, ...              epochs of stage 1
#   1,000,001, ...         epochs of stage 2, counted from STAGE_2_EPOCHS_FROM
#   999,999, 999,998, ...  batches to re-estimate BatchNorm statistics on
#   0                      batches that a report evaluates the loss surface on
STAGE_2_EPOCHS_FROM = 1_000_000
_LAST_SPARE_EPOCH = STAGE_2_EPOCHS_FROM - 1
_MOST_EPOCHS = 900_000  # the largest number that a configuration allows

WAITS_SECONDS = (2.0, 10.0, 30.0)  # before reading is tried again
_FILE = re.compile(r"(?:data file is|open file|path): *(\S.*?\.\w{3,4})\b")
# MindSpore's words for a fault that reading again does not mend: a file is not an image, a transform does not fit, or
# the code that gives the samples has an error.
_LASTING_FAULT = re.compile(
    r"map operation: \[|decode failed|by libjpeg|file size is 0|Unsupported image type|got directory|Cannot batch"
    r"|Invalid Python function"
)
_REASON = re.compile(r"\[ERROR\] *(.*)")
_DUMPS = ("abnormal_image.*", "unsupported_image.*")
_PYTHON_ERROR = re.compile(r"- Python Call Stack:.*?\n(\S[^\n]*)\n\s*\n---", re.DOTALL)  # the last line of a traceback


class DamagedError(DataError):
    """What was read can't be used, such as a file that is not an image; reading again would not help."""


def is_spare(epoch: int) -> bool:
    """Return whether an epoch's number is for batches outside training, for example for BatchNorm's statistics."""
    return epoch == 0 or _MOST_EPOCHS < epoch < STAGE_2_EPOCHS_FROM


@dataclass(kw_only=True, eq=False)
class Batches:
    """One split of the data as batches of (inputs, labels); a subclass says how samples are read."""

    batch_size: int  # samples in one rank's batch
    workers: int = 1  # threads that read
    rank: int = 0  # number of this process in a data-parallel job; the ranks share out every batch's samples
    group_size: int = 1  # number of ranks
    accumulation: int = 1  # micro-batches in each training batch; an epoch's last batch may have fewer
    multiple_of: int = 1  # micro-batches that an epoch takes or drops together
    sink: bool = False  # for training batches without accumulation, see Readable
    mixing: Mixing | None = None  # for training batches
    n_images: int = field(init=False)  # samples in the split, or in the part that ``shortened`` takes
    classes: Sequence[str] = field(init=False, default=())  # the classes' names, if known
    input_shape: tuple[int, ...] | None = field(init=False, default=None)  # a sample's, if known before one is read
    _n_in_split: int | None = field(init=False, default=None)  # samples in the whole split, if this is a shortened copy

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of steps in a training epoch; the last one may have fewer micro-batches."""
        return -(-self._n_micro_batches // self.accumulation)

    def rows_of_step(self, step: int) -> int:
        """Return how many samples this rank has in an epoch's step, counted from 1; the last step may have fewer."""
        n_left = self._n_micro_batches - (step - 1) * self.accumulation
        return min(self.accumulation, n_left) * self.batch_size

    @property
    def _n_micro_batches(self) -> int:
        """Return how many micro-batches each rank takes per epoch: floor(n_images / (batch_size group_size m)) m.

        m is ``multiple_of``. One rank with m = R drops the images that R ranks with m = 1 drop.
        """
        images_together = self.batch_size * self.group_size * self.multiple_of
        return self.n_images // images_together * self.multiple_of

    def training_epoch(self, seed: int, epoch: int) -> "Readable":
        """Return this rank's augmented batches for an epoch; samples that fill no step are dropped.

        All R ranks' next batch is the next ``R batch_size`` samples of a permutation that depends only on seed and
        epoch; rank r takes the r-th part of it. So in each step R ranks see the same samples as one rank with R times
        the batch size.

        With ``mixing``, each rank mixes the samples in its part of a batch, all micro-batches together.

        Args:
            seed: the run's seed; it determines order and augmentation.
            epoch: number of the epoch; stage 2's begin after ``STAGE_2_EPOCHS_FROM``.
        """
        samples = self._training_samples(self._training_order(seed, epoch), seed, epoch)
        options = {} if self.mixing is None or is_spare(epoch) else self._mixed(self.mixing, samples, seed, epoch)
        if self.accumulation == 1:
            return Readable(samples.batch(self.batch_size, drop_remainder=True, **options), self.sink)
        # The order holds whole micro-batches only.
        return Readable(samples.batch(self.batch_size * self.accumulation, **options))

    def _mixed(self, mixing: Mixing, samples: dataset.Dataset, seed: int, epoch: int) -> dict[str, Any]:
        """Return the options for MindSpore's ``batch`` that mix each batch's first input and labels."""
        first, *_, label = samples.get_col_names()

        def mix(inputs: list[np.ndarray], labels: list[np.ndarray], batch: Any) -> tuple[np.ndarray, np.ndarray]:
            return mixing.mixed(np.stack(inputs), np.stack(labels), (seed, epoch, self.rank, batch.get_batch_num()))

        return {"per_batch_map": mix, "input_columns": [first, label], "num_parallel_workers": 1}

    def _training_order(self, seed: int, epoch: int) -> np.ndarray:
        """Return the numbers of this rank's samples in an epoch, in order."""
        order = np.random.default_rng([seed, epoch]).permutation(self.n_images)
        shape = (self._n_micro_batches, self.group_size, self.batch_size)
        return self._in_split(order[: math.prod(shape)].reshape(shape)[:, self.rank].reshape(-1))

    def numbers_of_step(self, seed: int, epoch: int, step: int) -> np.ndarray:
        """Return the numbers of this rank's samples in a training epoch's step, counted from 1."""
        first = (step - 1) * self.accumulation * self.batch_size
        return self._training_order(seed, epoch)[first : first + self.rows_of_step(step)]

    def fault_of_step(self, seed: int, epoch: int, step: int) -> str | None:
        """Look at a step's inputs after its loss was not finite, and return what is wrong with them, if anything.

        Images are always finite, so by default nothing is read.

        Raises:
            DataError: the samples can't be read.
        """
        return None

    def evaluated_numbers(self) -> np.ndarray:
        """Return the numbers of this rank's samples in an evaluation, in order."""
        return self._in_split(np.arange(self.rank, self.n_images, self.group_size))

    def evaluation(self) -> "Readable":
        """Return this rank's part of all samples, in the split's order, without augmentation."""
        order = self.evaluated_numbers()
        if not len(order):
            return Readable(None)
        return Readable(self._evaluation_samples(order).batch(self.batch_size))

    def spare_batches(self, seed: int) -> Iterator[Any]:
        """Yield endless training micro-batches, in orders that no epoch uses; none if the split fills no batch."""
        single = copy(self)
        single.accumulation = 1
        for epoch in count(_LAST_SPARE_EPOCH, -1) if self.steps_per_epoch else ():
            yield from read_batches(partial(single.training_epoch, seed, epoch))

    def shortened(self, n_steps: int) -> "Batches":
        """Return a copy with samples for ``n_steps`` steps, at least two samples, spread evenly over the split."""
        part = copy(self)
        part.n_images = min(self.n_images, max(2, n_steps * self.accumulation * self.batch_size * self.group_size))
        part._n_in_split = self._n_in_split or self.n_images
        return part

    def sample_names(self) -> list[str]:
        """Return a name for each sample, in the split's order; a number, unless a subclass knows a better name."""
        return [str(number) for number in self._in_split(np.arange(self.n_images))]

    def _in_split(self, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers that samples have in the whole split."""
        return numbers if self._n_in_split is None else numbers * self._n_in_split // self.n_images

    def check_use(self, n_classes: int, *, trains_classes: bool, measures_classes: bool) -> None:
        """Check that the split can be used as the configuration says; by default there is nothing to check.

        Args:
            n_classes: outputs of the network.
            trains_classes: whether the loss is the built-in classifier loss.
            measures_classes: whether the metrics are the built-in ones.

        Raises:
            DataError: it can't.
        """

    def digest(self) -> str:
        """Return a digest that identifies the split, in hexadecimal."""
        raise NotImplementedError

    def _training_samples(self, order: np.ndarray, seed: int, epoch: int) -> dataset.Dataset:
        raise NotImplementedError

    def _evaluation_samples(self, order: np.ndarray) -> dataset.Dataset:
        raise NotImplementedError


class Readable:
    """The batches of a MindSpore dataset; errors name the file that can't be read.

    Args:
        batches: the dataset; its batches have one shape if ``sink`` is set. None for no batches, because MindSpore has
            no empty sampler.
        sink: whether to take batches from MindSpore's queue on the device, filled ahead of the steps.

    Attributes:
        batches: the dataset as given, for example for ``Model.train``.
    """

    def __init__(self, batches: Any, sink: bool = False):
        self.batches = batches
        self._sink = sink

    def create_tuple_iterator(self, num_epochs: int = 1, output_numpy: bool = False) -> Iterator[Any]:
        """Iterate over one epoch, with MindSpore's arguments.

        Raises:
            DataError: a batch can't be read; the message names the file if MindSpore does. It is a DamagedError if
                reading again would not help, for example if a file is not an image.
        """
        if self.batches is None:
            return
        if self._sink:
            batches = self._from_the_device()
        else:
            batches = self.batches.create_tuple_iterator(num_epochs=num_epochs, output_numpy=output_numpy)
        with _without_dumps():
            try:
                yield from batches
            except RuntimeError as error:
                raise _as_data_error(str(error)) from None

    def _from_the_device(self) -> Iterator[Any]:
        take = data_sink(lambda *columns: columns, self.batches)
        try:
            for _ in range(self.batches.get_dataset_size()):
                yield take()
        finally:  # otherwise the queue would continue with the next epoch
            queue = self.batches.__transfer_dataset__
            queue.stop_send()
            queue.release()


@contextmanager
def _without_dumps() -> Iterator[None]:
    """Remove the copies that MindSpore leaves in the working folder of images that it could not decode."""
    folder = Path.cwd()
    before = {path for pattern in _DUMPS for path in folder.glob(pattern)}
    try:
        yield
    finally:
        for path in {path for pattern in _DUMPS for path in folder.glob(pattern)} - before:
            path.unlink(missing_ok=True)


def _as_data_error(text: str) -> DataError:
    """Turn MindSpore's text about an unreadable batch into a DataError; a DamagedError if retrying would not help."""
    of_python = _PYTHON_ERROR.search(text)
    file = _FILE.search(text)
    if of_python and (ours := re.search("(?:Data|Damaged)Error: (.*)", of_python[1])):  # raised in MindSpore's thread
        return DamagedError(ours[1])
    reason = of_python or _REASON.search(text)
    why = shown(reason[1] if reason else text, 300)
    if difference := re.search("Cannot batch tensors with different (shapes|types)", text):
        remedy = f"for images, set data.resize=true, or give all samples one {difference[1][:-1]}"
        return DamagedError(f"samples have different {difference[1]}, and can't be put into a batch: {remedy} ({why})")
    if "[RandomCrop] failed" in text:
        remedy = "set data.resize=true, or give all images data.image_size"
        return DamagedError(f"an image is too small for data.augmentation 'pad_crop': {remedy} ({why})")
    kind = DamagedError if _LASTING_FAULT.search(text) else DataError
    if file is None:
        return kind(f"the data can't be read: {why}")
    return kind(f"{file[1]} can't be read as an image; restore it, or replace it ({why})")


def read_batches(
    make: Callable[[], Readable],
    skip: int = 0,
    *,
    at_skipped: Callable[[], object] = lambda: None,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Any]:
    """Yield the batches of an epoch or an evaluation after the first ``skip``.

    If a file can't be opened, for example because a network disk is gone for a moment, the epoch is made and read again
    after a pause, up to three times. Batches already yielded are then read and skipped, so that the rest is augmented
    as if nothing had happened.

    Args:
        make: makes the same epoch each time.
        skip: number of batches already done, for example in a resumed run.
        at_skipped: called for each batch that is read and skipped.
        wait: sleeps for a number of seconds.

    Raises:
        DataError: a sample can't be used, such as an image that can't be decoded, or reading still fails after three
            pauses; the message names the file if it is known.
    """
    for pause in (*WAITS_SECONDS, None):
        try:
            for number, batch in enumerate(make().create_tuple_iterator(num_epochs=1), start=1):
                if number <= skip:
                    at_skipped()
                else:
                    yield batch
                    skip = number
            return
        except DataError as error:
            if pause is None or isinstance(error, DamagedError):
                raise
            _log.info(f"{error}; trying again in {pause:.0f} s")
            wait(pause)
