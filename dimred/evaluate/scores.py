"""Means over everything that a network is measured on, whatever it is measured by."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, dataset, nn

from dimred.distributed.ranks import ALONE, Ranks
from dimred.evaluate.classification import cross_entropy, is_correct

# (outputs, labels) -> values, or (values, counted): one value for each item of each sample, (n, ...), as a Tensor or an
# array; ``counted`` has the same shape, and is false for what is left out, such as the padding of a text.
Score = Callable[[Any, Tensor], Any]


class Scores(NamedTuple):
    """What a network is measured by.

    Attributes:
        loss: the lowest is the best; chooses on ``val``.
        metric: what is reported.
    """

    loss: Score
    metric: Score


CLASSIFICATION = Scores(cross_entropy, is_correct)


class MeanScore:
    """The mean of a score over the batches and the ranks.

    Args:
        network: inputs -> outputs; its training mode is put back afterwards.
        score: of these outputs.
        ranks: each calls it with its own share of the data; sums and counts are added up, so the shares may differ.
    """

    def __init__(self, network: nn.Cell, score: Score, ranks: Ranks = ALONE):
        self._network, self._score, self._ranks = network, score, ranks

    def __call__(self, batches: dataset.Dataset) -> float:
        """The mean over every item that counts, those of an uneven last batch included."""
        total = sum((np.array([sums.sum(), counts.sum()]) for sums, counts in self._each_batch(batches)), np.zeros(2))
        found, n_items = self._ranks.sum(total)
        return float(found) / float(n_items)

    def of_samples(self, batches: dataset.Dataset) -> np.ndarray:
        """Each sample's score, float32 (n,): those of all ranks, in the same order on each.

        It is the sum over the sample's items, divided by the mean number of items of a sample. So the mean over the
        samples is the mean over the items, and the samples are what is independent of each other.
        """
        own = np.concatenate([np.zeros((2, 0)), *map(np.array, self._each_batch(batches))], axis=1)  # sums, counts
        sizes = np.zeros(self._ranks.group_size)
        sizes[self._ranks.rank] = own.shape[1]
        sizes = self._ranks.sum(sizes).astype(int)
        first = sizes[: self._ranks.rank].sum()
        everything = np.zeros((2, sizes.sum()), np.float32)
        everything[:, first : first + own.shape[1]] = own
        sums, counts = self._ranks.sum(everything)
        return sums / counts.mean()

    def _each_batch(self, batches: dataset.Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        was_training = self._network.training
        self._network.set_train(False)
        try:
            for *inputs, labels in batches.create_tuple_iterator(num_epochs=1):
                yield sums_and_counts(self._score(self._network(*inputs), labels))
        finally:
            self._network.set_train(was_training)


def sums_and_counts(found: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of each sample: the sum over its items that count, and how many these are; float64 (n,) each.

    Args:
        found: what a score gave.
    """
    values, counted = found if isinstance(found, tuple) else (found, True)
    values, counted = np.broadcast_arrays(on_host(values), on_host(counted) != 0)
    within = tuple(range(1, values.ndim))
    return np.where(counted, values, 0).sum(within, dtype=np.float64), counted.sum(within, dtype=np.float64)


def on_host(value: Any) -> np.ndarray:
    """A Tensor of any type, or what NumPy takes, as float32."""
    return np.asarray(value.astype(ms.float32).asnumpy() if isinstance(value, Tensor) else value, np.float32)
