"""How well a network classifies: top-1 accuracy, and mean cross entropy.

The network gives logits (n, n_classes) for n labels, or (n, n_classes, ...) for labels (n, ...), such as one for each
place of a text. Labels of ``IGNORED`` are left out, as MindSpore's cross entropy does.
"""

from collections.abc import Iterator

import mindspore as ms
import numpy as np
from mindspore import Tensor, dataset, nn, ops
from mindspore import dtype as mstype

from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import DataError

IGNORED = -100
_WHOLE = (mstype.bool_, *mstype.int_type, *mstype.uint_type)


class _OverLabels:
    """What a batch is asked for, added up over the batches and the ranks.

    Args:
        network: inputs -> logits; its training mode is put back afterwards.
        ranks: each calls it with its own share of the data; sums and counts are added up, so the shares may differ.
    """

    _of_labels: type["_OfLabels"]

    def __init__(self, network: nn.Cell, ranks: Ranks = ALONE):
        self._network = network
        self._ranks = ranks
        self._of_batch = self._of_labels(network)

    def _each_batch(self, batches: dataset.Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Of each sample of a batch (n,): the sum over its labels, and how many there are."""
        was_training = self._network.training
        self._of_batch.set_train(False)
        try:
            for inputs, labels in batches.create_tuple_iterator(num_epochs=1):
                if labels.dtype not in _WHOLE:
                    raise DataError(
                        f"the labels are {labels.dtype} of the shape {labels.shape}, but only whole numbers can be "
                        "counted as classes; evaluate a regression in a loop of your own"
                    )
                sums, counts, shape = self._of_batch(inputs, labels)
                if not _fit(shape, labels.shape):
                    raise DataError(
                        f"the network gives logits of the shape {shape} for labels of the shape {labels.shape}; "
                        "logits must be (n, n_classes) for labels (n,), or (n, n_classes, ...) for labels (n, ...)"
                    )
                yield sums.asnumpy(), counts.asnumpy()
        finally:
            self._of_batch.set_train(was_training)

    def __call__(self, batches: dataset.Dataset) -> float:
        """The mean over every label of ``batches``, those of an uneven last batch included.

        Raises:
            DataError: the labels are no classes, or not one for each of the network's decisions.
        """
        total = sum((np.array([sums.sum(), counts.sum()]) for sums, counts in self._each_batch(batches)), np.zeros(2))
        found, n_labels = self._ranks.sum(total)
        return float(found) / float(n_labels)


def _fit(logits: tuple[int, ...], labels: tuple[int, ...]) -> bool:
    """Whether logits of this shape have the scores of every class for each of the labels."""
    return len(logits) > 1 and logits[:1] + logits[2:] == labels


class _OfLabels(nn.Cell):
    """inputs, labels -> of each sample the sum over its labels (n,) and how many they are (n,); the logits' shape."""

    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        logits, labels = self.network(inputs), labels.astype(ms.int32)
        if not _fit(logits.shape, labels.shape):  # known when the graph is compiled
            return ops.zeros(()), ops.zeros(()), logits.shape
        counted = ops.not_equal(labels, IGNORED).astype(ms.int32)
        n = labels.shape[0]
        return self.score(logits, labels).reshape(n, -1).sum(1), counted.reshape(n, -1).sum(1), logits.shape


class _IsCorrect(_OfLabels):
    def score(self, logits: Tensor, labels: Tensor) -> Tensor:
        return ops.equal(ops.argmax(logits, 1).astype(ms.int32), labels).astype(ms.int32)


class _CrossEntropy(_OfLabels):
    def score(self, logits: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(logits.astype(ms.float32), labels, ignore_index=IGNORED, reduction="none")


class Accuracy(_OverLabels):
    """Share of the labels that the network gets right, as a fraction of 1."""

    _of_labels = _IsCorrect


class CrossEntropy(_OverLabels):
    """Mean of -log p(label), without label smoothing.

    On a small held-out split it tells two networks apart that accuracy can't: a label counts by how sure the network
    was, not only by whether it crossed a border.
    """

    _of_labels = _CrossEntropy

    def of_samples(self, batches: dataset.Dataset) -> np.ndarray:
        """Each sample's loss, float32 (n,): those of all ranks, in the same order on each.

        It is the sum over the sample's labels, divided by the mean number of labels of a sample. So the mean over the
        samples is the mean over the labels, and the samples are what is independent of each other.

        Raises:
            DataError: as a call.
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
