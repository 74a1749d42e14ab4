"""Means over everything that a network is measured on, whatever it is measured by."""

from collections.abc import Callable
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, dataset, nn

from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, DataError
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


# Of each batch: of each of its samples the sum over its items that count, and how many these are, (n,) each.
Found = list[tuple[np.ndarray, np.ndarray]]


def score_batches(network: nn.Cell, batches: dataset.Dataset, *scores: Score) -> list[Found]:
    """What each score finds on the batches, in one pass; the network's training mode is put back afterwards."""
    found: list[Found] = [[] for _ in scores]
    was_training = network.training
    network.set_train(False)
    try:
        for *inputs, labels in batches.create_tuple_iterator(num_epochs=1):
            outputs = network(*inputs)
            for of_one, score in zip(found, scores, strict=True):
                of_one.append(sums_and_counts(score(outputs, labels)))
    finally:
        network.set_train(was_training)
    return found


def mean_of_items(found: Found, ranks: Ranks = ALONE) -> float:
    """The mean over every item that counts of all ranks, whose shares of the data may differ.

    Raises:
        DataError: none counts.
    """
    total = sum((np.array([sums.sum(), counts.sum()]) for sums, counts in found), np.zeros(2))
    score, n_items = ranks.sum(total)
    return float(score) / _at_least_one(n_items)


def means_of_samples(found: Found, ranks: Ranks = ALONE) -> np.ndarray:
    """Each sample's score, float32 (n,): those of all ranks, in the same order on each.

    It is the sum over the sample's items, divided by the mean number of items of a sample. So the mean over the samples
    is the mean over the items, and the samples are what is independent of each other.

    Raises:
        DataError: no item counts.
    """
    own = np.concatenate([np.zeros((2, 0)), *map(np.array, found)], axis=1)  # sums, counts
    sizes = np.zeros(ranks.group_size)
    sizes[ranks.rank] = own.shape[1]
    sizes = ranks.sum(sizes).astype(int)
    first = sizes[: ranks.rank].sum()
    everything = np.zeros((2, sizes.sum()), np.float32)
    everything[:, first : first + own.shape[1]] = own
    sums, counts = ranks.sum(everything)
    _at_least_one(counts.sum())
    return sums / counts.mean()


def _at_least_one(n_items: float) -> float:
    if not n_items:
        raise DataError("not one item of the split counts: it is empty, or all of its labels are to be ignored")
    return float(n_items)


def sums_and_counts(found: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of each sample: the sum over its items that count, and how many these are; float64 (n,) each.

    Args:
        found: what a score gave.

    Raises:
        ConfigError: that is a single number.
    """
    values, counted = found if isinstance(found, tuple) else (found, True)
    values, counted = np.broadcast_arrays(on_host(values), on_host(counted) != 0)
    if values.ndim == 0:
        raise ConfigError(
            "loss or metric gave a single number of a batch; it must give one for each item, (n, ...), so that batches "
            'of any size count rightly (in MindSpore: reduction="none")'
        )
    within = tuple(range(1, values.ndim))
    return np.where(counted, values, 0).sum(within, dtype=np.float64), counted.sum(within, dtype=np.float64)


def on_host(value: Any) -> np.ndarray:
    """A Tensor of any type, or what NumPy takes, as float32."""
    return np.asarray(value.astype(ms.float32).asnumpy() if isinstance(value, Tensor) else value, np.float32)
