"""How well a network classifies: top-1 accuracy, and mean cross entropy.

The network gives logits (n, n_classes) for n labels, or (n, n_classes, ...) for labels (n, ...), such as one for each
place of a text. Labels of ``IGNORED`` are left out, as MindSpore's cross entropy does.
"""

import mindspore as ms
from mindspore import Tensor, dataset, nn, ops
from mindspore import dtype as mstype

from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import DataError

IGNORED = -100
_WHOLE = (mstype.bool_, *mstype.int_type, *mstype.uint_type)


class _MeanOverLabels:
    """Mean over all labels of a number that ``_sum`` gives for a batch.

    Args:
        network: inputs -> logits; its training mode is put back afterwards.
        ranks: each calls it with its own share of the data; sums and counts are added up, so the shares may differ.
    """

    _sum: type["_Sum"]

    def __init__(self, network: nn.Cell, ranks: Ranks = ALONE):
        self._network = network
        self._ranks = ranks
        self._sum_of_batch = self._sum(network)

    def __call__(self, batches: dataset.Dataset) -> float:
        """The mean over every label of ``batches``, those of an uneven last batch included.

        Raises:
            DataError: the labels are no classes, or not one for each of the network's decisions.
        """
        was_training = self._network.training
        self._sum_of_batch.set_train(False)
        total, n_labels = 0.0, 0
        try:
            for inputs, labels in batches.create_tuple_iterator(num_epochs=1):
                if labels.dtype not in _WHOLE:
                    raise DataError(
                        f"the labels are {labels.dtype} of the shape {labels.shape}, but only whole numbers can be "
                        "counted as classes; evaluate a regression in a loop of your own"
                    )
                found, count, shape = self._sum_of_batch(inputs, labels)
                if not _fit(shape, labels.shape):
                    raise DataError(
                        f"the network gives logits of the shape {shape} for labels of the shape {labels.shape}; "
                        "logits must be (n, n_classes) for labels (n,), or (n, n_classes, ...) for labels (n, ...)"
                    )
                total += float(found.asnumpy())
                n_labels += int(count.asnumpy())
        finally:
            self._sum_of_batch.set_train(was_training)
        sum_of_all, n_of_all = self._ranks.sum([total, n_labels])
        return float(sum_of_all) / float(n_of_all)


def _fit(logits: tuple[int, ...], labels: tuple[int, ...]) -> bool:
    """Whether logits of this shape have the scores of every class for each of the labels."""
    return len(logits) > 1 and logits[:1] + logits[2:] == labels


class _Sum(nn.Cell):
    """inputs, labels -> a sum over the labels, how many there are, and the shape of the logits."""

    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        logits, labels = self.network(inputs), labels.astype(ms.int32)
        if not _fit(logits.shape, labels.shape):  # known when the graph is compiled
            return ops.zeros(()), ops.zeros(()), logits.shape
        return self.sum(logits, labels), ops.not_equal(labels, IGNORED).astype(ms.int32).sum(), logits.shape


class _CountCorrect(_Sum):
    def sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        return ops.equal(ops.argmax(logits, 1).astype(ms.int32), labels).astype(ms.int32).sum()


class _SumCrossEntropy(_Sum):
    def sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(logits.astype(ms.float32), labels, ignore_index=IGNORED, reduction="sum")


class Accuracy(_MeanOverLabels):
    """Share of the labels that the network gets right, as a fraction of 1."""

    _sum = _CountCorrect


class CrossEntropy(_MeanOverLabels):
    """Mean of -log p(label), without label smoothing.

    On a small held-out split it tells two networks apart that accuracy can't: a label counts by how sure the network
    was, not only by whether it crossed a border.
    """

    _sum = _SumCrossEntropy
