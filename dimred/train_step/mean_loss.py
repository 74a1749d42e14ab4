"""The mean loss of a batch, and the weight of a micro-batch or of a rank in the mean of the whole batch."""

import logging
from itertools import count
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, mint, nn, ops
from mindspore import dtype as mstype

from dimred.errors import ConfigError
from dimred.train_step.places import places

_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss, mint.nn.CrossEntropyLoss, mint.nn.NLLLoss)
_log = logging.getLogger(__name__)
_serial = count(1)  # MindSpore wants the counts of one network to have different names


class MeanLoss(nn.Cell):
    """A cell that returns the mean loss of a batch: what the network returns, or its sum divided by its count.

    Args:
        network: network and loss in one cell, which returns the mean loss of a batch, or (sum, count).

    Inputs:
        the network's inputs.

    Outputs:
        the mean loss, the same again as its total, and the weight 1, () float32 each; see ``WeightedLoss``.

    Raises:
        ConfigError: at the first call, the network returns neither one number nor a pair with an integer count.
    """

    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network
        self.one = Tensor(1.0, ms.float32)

    def construct(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        numbers = _numbers(self.network(*inputs))
        mean = numbers[0] if len(numbers) == 1 else numbers[0] / numbers[1]
        return mean, mean, self.one


class WeightedLoss(nn.Cell):
    """A cell that returns the mean loss of a part of a batch, and how many items for each row the mean is over.

    With means f_i over n_i items, such as labels that are not ignored, the mean over all items of all parts i is

        f = sum_i n_i f_i / sum_i n_i

    For MindSpore's cross entropies n_i is the number of labels that are not ``ignore_index``, or, with class weights,
    the sum of the weights of these labels. Each such cell with ``reduction="mean"`` is replaced, in its place in the
    network, by one that does the same and counts, because only that cell sees the labels. Any other network can return
    the sum of the loss, and n_i as an integer tensor, in place of the mean. If it does not, its mean counts as one over
    the rows. The n_i of several cross entropies is their sum, so f is exact only if all parts have these in the same
    proportion.

    Args:
        network: as for ``MeanLoss``. A warning is logged if a loss in it is a sum.

    Inputs:
        the network's inputs; the first dimension of the first one counts the rows.

    Outputs:
        the mean loss f_i; its total, f_i times the weight; and the weight n_i / rows, () float32 each.

    Raises:
        ConfigError: as for ``MeanLoss``.
    """

    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network
        _warn_of_sums(network)
        counts = _count_labels(network)
        self.counts = len(counts) > 0
        object.__setattr__(self, "label_counts", ParameterTuple(counts))  # not registered: no checkpoint holds them
        self.one, self.not_called = Tensor(1.0, ms.float32), Tensor(-1.0, ms.float32)

    def construct(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        for label_count in self.label_counts:
            ops.assign(label_count, self.not_called)
        numbers = _numbers(self.network(*inputs))
        n_rows = 1
        if len(inputs) > 0 and isinstance(inputs[0], Tensor) and inputs[0].ndim > 0:
            n_rows = inputs[0].shape[0]
        if len(numbers) == 1:
            mean, weight = numbers[0], self._weight(n_rows)
        else:
            total, n_items = numbers
            mean, weight = total / ops.select(n_items == 0, self.one, n_items), n_items / n_rows
        return mean, mean * weight, weight

    def _weight(self, n_rows: int) -> Tensor:
        """Return the items that the losses counted for each row; 1 if none of them was called."""
        if not self.counts:
            return self.one
        counts = ops.stop_gradient(ops.stack([one + 0.0 for one in self.label_counts]))
        return ops.select(counts.max() < 0, self.one, ops.maximum(counts, 0.0).sum() / n_rows)


class _CountingLoss(nn.Cell):
    """A loss that adds to ``label_count`` how many of its labels count, or the sum of their class weights.

    If no label of a batch counts, the mean would be 0 / 0. Then other labels are put in their place, and the loss is
    multiplied by 0, so that it and its gradient are 0.

    Args:
        loss: one of MindSpore's cross entropies, with ``reduction="mean"``.
    """

    def __init__(self, loss: nn.Cell):
        super().__init__(auto_prefix=False)
        self.loss = loss
        label_count = Parameter(Tensor(-1.0, ms.float32), name=f"label_count_{next(_serial)}", requires_grad=False)
        object.__setattr__(self, "label_count", label_count)
        self.ignore_index = loss.ignore_index
        self.weight = loss.weight
        weights = np.ones(2) if loss.weight is None else loss.weight.asnumpy().astype(np.float32)
        heaviest_first = np.argsort(-weights, kind="stable")
        self.class_that_counts = int(heaviest_first[heaviest_first != self.ignore_index][0])

    def construct(self, logits: Any, labels: Tensor, *others: Any) -> Any:
        if labels.dtype in (mstype.float16, mstype.float32, mstype.float64, mstype.bfloat16):  # of each class
            self._add(labels.size // labels.shape[min(1, labels.ndim - 1)])
            return self.loss(logits, labels, *others)
        counts = ops.not_equal(labels, self.ignore_index)
        other = ops.full_like(labels, self.class_that_counts)
        if self.weight is None:
            n_items = counts.astype(ms.int32).sum().astype(ms.float32)
        else:
            weights = ops.gather(self.weight.astype(ms.float32), ops.select(counts, labels, other), 0)
            n_items = (weights * counts.astype(ms.float32)).sum()
        self._add(n_items)
        loss = self.loss(logits, ops.where(n_items > 0, labels, other), *others)
        is_some = (n_items > 0).astype(ms.float32)
        if isinstance(loss, tuple):
            return loss[0] * is_some, loss[1] * is_some
        return loss * is_some

    def _add(self, n_items: Any) -> None:
        ops.assign(self.label_count, ops.maximum(self.label_count, 0.0) + n_items)


def _count_labels(network: nn.Cell) -> list[Parameter]:
    """Let every cross entropy of the network count, in its place, and return the counts."""
    for place in places(network):
        is_mean = isinstance(place.cell, _LOSSES) and place.cell.reduction == "mean"
        if is_mean and not isinstance(place.owner, _CountingLoss):
            place.put(_CountingLoss(place.cell))
    counting = {id(place.cell): place.cell for place in places(network) if isinstance(place.cell, _CountingLoss)}
    return [cell.label_count for cell in counting.values()]


def _warn_of_sums(network: nn.Cell) -> None:
    """Warn of a loss that is a sum: in a mean over parts of the batch it would be smaller than over the whole."""
    for cell in {place.cell for place in places(network)}:
        is_sum = getattr(cell, "reduction", None) == "sum"
        if isinstance(cell, nn.LossBase):
            is_sum = is_sum or (getattr(cell, "reduce", False) and not getattr(cell, "average", True))
        if is_sum:
            _log.warning(
                f"{type(cell).__name__} has reduction='sum', and a step with micro-batches or ranks takes the mean of "
                "their losses, unless the network divides the sum by its rows, or returns it with its count"
            )


def _numbers(loss: Any) -> list[Tensor]:
    """Return the mean loss, or its sum and its count, float32 each, and check that nothing else was returned.

    Another pair, such as a loss and an accuracy, must not be divided.
    """
    values = loss if isinstance(loss, (tuple, list)) else [loss]
    _check([_kind(value) for value in values])
    return [value.astype(ms.float32) for value in values]


def _kind(value: Any) -> Any:
    return (value.shape, value.dtype) if isinstance(value, Tensor) else None


@ops.constexpr  # so that a graph calls it when it is compiled, before any step
def _check(kinds: list[Any]) -> None:
    are_numbers = all(kind is not None and kind[0] == () for kind in kinds)
    has_count = len(kinds) == 2 and are_numbers and kinds[1][1] in (mstype.int32, mstype.int64)
    if not (are_numbers and len(kinds) == 1) and not has_count:
        values = " and ".join("what is no tensor" if kind is None else f"{kind[1]} {kind[0]}" for kind in kinds)
        raise ConfigError(
            f"the network gives {values} as its loss; a step needs the mean over the batch, one tensor of the shape () "
            '(reduction="mean"), or its sum and its count, two of that shape, the count int32 or int64'
        )
