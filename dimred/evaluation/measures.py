"""Measures of a network on a split: each keeps something from every batch, and turns all of it into a result."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from mindspore import Tensor, nn, ops

from dimred.data.inputs import not_finite
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, DataError, shown
from dimred.evaluation.scores import (
    BatchSums,
    Score,
    cross_entropy,
    is_correct,
    mean_of_items,
    means_of_samples,
    misfit,
    on_host,
    sums_and_counts,
    values_of,
)
from dimred.train_step.modes import evaluating

Result = TypeVar("Result")
Outputs = Any
"""A Tensor, or a tuple of several; for a measure of the whole split, arrays."""


class Measure(Generic[Result]):
    """A quantity measured on a split: first on each of this rank's batches, then over all ranks."""

    def of_batch(self, outputs: Outputs, labels: Tensor) -> Any:
        """Return what to keep from a batch.

        Args:
            outputs: the network's outputs, a Tensor (n, ...) or several.
            labels: (n, ...).
        """
        raise NotImplementedError

    def of_split(self, kept: list[Any], ranks: Ranks = ALONE) -> Result:
        """Return the result on the split, the same on every rank.

        Args:
            kept: what ``of_batch`` returned for each of this rank's batches.
            ranks: the job's ranks; all of them call this.
        """
        raise NotImplementedError

    def misfit(self, outputs: Outputs, labels: Tensor) -> str | None:
        """Try the measure on a batch; return a sentence that says what is wrong with its result, or None."""
        self.of_batch(outputs, labels)
        return None


class MeanOfItems(Measure[float]):
    """The mean of a score over all items."""

    def __init__(self, score: Score):
        self.score = score

    def of_batch(self, outputs: Outputs, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
        return sums_and_counts(self.score, outputs, labels)

    def of_split(self, kept: BatchSums, ranks: Ranks = ALONE) -> float:
        return mean_of_items(kept, ranks)

    def misfit(self, outputs: Outputs, labels: Tensor) -> str | None:
        values, _ = values_of(self.score, outputs, labels)
        return misfit(values.shape, outputs, labels)


class MeansOfSamples(Measure[np.ndarray]):
    """Each sample's score, float32 (n,); see ``means_of_samples``."""

    def __init__(self, score: Score):
        self._score = score

    def of_batch(self, outputs: Outputs, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
        return sums_and_counts(self._score, outputs, labels)

    def of_split(self, kept: BatchSums, ranks: Ranks = ALONE) -> np.ndarray:
        return means_of_samples(kept, ranks)


class OfWholeSplit(Measure[float]):
    """A number that is not a mean over samples, such as F1 or R2: a function gets all outputs and labels at once.

    Args:
        function: (outputs, labels) -> one number. It gets the whole split's outputs, float32 (n, ...) or a tuple of
            such arrays, and labels (n, ...), in the split's order.
    """

    def __init__(self, function: Callable[[Outputs, np.ndarray], Any]):
        self._function = function

    def of_batch(self, outputs: Outputs, labels: Tensor) -> tuple[Outputs, np.ndarray]:
        return on_hosts(outputs), labels.asnumpy()

    def of_split(self, kept: list[tuple[Outputs, np.ndarray]], ranks: Ranks = ALONE) -> float:
        outputs, labels = rows_of_split(kept, ranks)
        value = ranks.run_together(lambda: self._value(outputs, labels))
        return float(ranks.gather([value])[0, 0])  # a function may draw random numbers, so rank 0's value counts

    def misfit(self, outputs: Outputs, labels: Tensor) -> str | None:
        value = self._function(*self.of_batch(outputs, labels))
        if np.size(value) == 1:
            return None
        return f"it gives {shown(value)}; a metric of the whole split must give one number"

    def _value(self, outputs: Outputs, labels: np.ndarray) -> float:
        value = self._function(outputs, labels)
        if np.size(value) != 1:
            raise ConfigError(f"metric gave {shown(value)} for the whole split; it must give one number")
        return float(np.asarray(value).item())


class Scores(NamedTuple):
    """The loss and the metrics that measure a network.

    Attributes:
        loss: the loss by which ``val`` chooses; lower is better.
        metrics: the metrics to report, the main one first.
    """

    loss: Score
    metrics: tuple[Measure[float], ...]


CLASSIFICATION = Scores(cross_entropy, (MeanOfItems(is_correct),))


def measure_batches(
    network: nn.Cell,
    batches: Any,
    measures: Sequence[Measure[Any]],
    *,
    name_of: Callable[[int], str] = "sample {}".format,
) -> tuple[list[list[Any]], int]:
    """Collect what each measure keeps from each batch, in one pass in evaluation mode; cells get their modes back.

    Args:
        network: maps inputs to outputs.
        batches: has ``create_tuple_iterator``, like MindSpore datasets; it yields the inputs and, last, the labels.
        measures: what to measure.
        name_of: names the sample in a row, counted from 0 over all batches, for errors.

    Returns:
        What each measure kept from the batches; and the number of samples.

    Raises:
        DataError: a batch can't be read, a label is not a class of the network, or neither an input nor its batch's
            outputs are finite.
        ConfigError: a score did not give one value for each item; see ``scores.misfit``.
    """
    kept: list[list[Any]] = [[] for _ in measures]
    n_rows = 0
    with evaluating(network):
        for *inputs, labels in batches.create_tuple_iterator(num_epochs=1):
            outputs = network(*inputs)
            if not _are_finite(outputs):
                _check_inputs(inputs, n_rows, name_of)
            for of_one, measure in zip(kept, measures, strict=True):
                of_one.append(measure.of_batch(outputs, labels))
            n_rows += len(labels)
    return kept, n_rows


def _are_finite(outputs: Outputs) -> bool:
    """Return whether all floats of a tensor, or of several, are finite."""
    if isinstance(outputs, tuple | list):
        return all(map(_are_finite, outputs))
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        return True
    return bool(ops.isfinite(outputs).all())


def _check_inputs(inputs: Sequence[Tensor], n_rows: int, name_of: Callable[[int], str]) -> None:
    """Raise a DataError that names a batch's first sample with an input that is not finite, if there is one."""
    for position, values in enumerate(inputs, start=1):
        for row, of_sample in enumerate(on_host(values) if values.is_floating_point() else ()):
            found = not_finite(of_sample)
            if found is not None:
                raise DataError(
                    f"{name_of(n_rows + row)} has {found} in input {position}, so that its outputs are not finite and "
                    "a measurement would mean nothing; correct the sample"
                )


def on_hosts(outputs: Outputs) -> Outputs:
    """Convert a Tensor, or each of several, to a float32 array."""
    if isinstance(outputs, tuple | list):
        return tuple(on_hosts(output) for output in outputs)
    return on_host(outputs)


def rows_of_split(batches: list[Any], ranks: Ranks = ALONE) -> Any:
    """Return the rows of all batches on all ranks, in the split's order, the same on every rank.

    Args:
        batches: arrays (rows, ...) of four bytes a number, one for each of this rank's batches; or tuples of arrays, or
            of such tuples.
        ranks: the job's ranks; rank r of R has the rows r, r + R, r + 2 R, ... of the split.

    Returns:
        An array (n, ...), or a tuple like the batches.

    Raises:
        ConfigError: the batches have arrays of different shapes.
        DataError: a rank has no batch.
    """
    if not ranks.gather([len(batches)]).all():
        raise DataError("a measure of the whole split needs a sample on every rank; give the split more samples")
    return _of_all_ranks(ranks.run_together(lambda: _joined(batches)), ranks)


def _joined(batches: list[Any]) -> Any:
    """Join the arrays from one rank's batches."""
    if isinstance(batches[0], tuple):
        return tuple(_joined(list(parts)) for parts in zip(*batches, strict=True))
    shapes = {batch.shape[1:] for batch in batches}
    if len(shapes) > 1:
        raise ConfigError(
            "a measure of the whole split needs samples of one shape, but outputs or labels have the shapes "
            f"{' and '.join(map(str, sorted(shapes)))}; pad them"
        )
    return np.concatenate(batches)


def _of_all_ranks(rows: Any, ranks: Ranks) -> Any:
    """Put all ranks' rows in order. Each number is sent as two of 16 bits, whose sums with zeros are exact."""
    if isinstance(rows, tuple):
        return tuple(_of_all_ranks(part, ranks) for part in rows)
    if ranks.group_size == 1:
        return rows
    n_rows = int(ranks.gather([len(rows)]).sum())
    halves = np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint16)
    of_all = np.zeros((n_rows, halves.shape[1]), np.float32)
    of_all[ranks.rank :: ranks.group_size] = halves
    return ranks.sum(of_all).astype(np.uint16).view(rows.dtype).reshape(n_rows, *rows.shape[1:])
