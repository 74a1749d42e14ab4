"""Weight each micro-batch or rank in the mean over the whole batch."""

import functools
import logging
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops

from dimred.train_step.mean_loss import loss_numbers
from dimred.train_step.places import places
from dimred.workarounds.visited_cells import VisitedOnce

_log = logging.getLogger(__name__)
_each = ops.HyperMap()  # a graph compiles it much faster than a loop
# MindSpore's cross entropies, each with the function that it calls.
_CROSS_ENTROPIES = {
    nn.CrossEntropyLoss: ops.cross_entropy,
    nn.NLLLoss: ops.nll_loss,
    mint.nn.CrossEntropyLoss: mint.nn.functional.cross_entropy,
    mint.nn.NLLLoss: mint.nn.functional.nll_loss,
}


class WeightedLoss(VisitedOnce, nn.Cell):
    """A cell that returns the mean loss over a part of a batch, and the number of items per row in that mean.

    With means f_i over n_i items, such as labels that are not ignored, the mean over all items of all parts i is

        f = sum_i n_i f_i / sum_i n_i

    For MindSpore's cross entropies, n_i is the number of labels other than ``ignore_index``, or, with class weights,
    the sum of these labels' weights. Only such a cell sees the labels, so each one with ``reduction="mean"`` is
    replaced in the network with one that does the same and counts. Any other network can return the loss's sum and n_i,
    an integer tensor, instead of the mean. If it does not, n_i is the number of rows. The same holds for a class that
    inherits from a cross entropy and has its own ``construct``. With several cross entropies, n_i is the sum of their
    counts, so f is exact only if these are in the same proportion in all parts.

    Args:
        network: as for ``MeanLoss``. A warning is logged if a loss in it takes the sum.

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
        for place in places(network):
            loss = place.cell
            kind = next((kind for kind in _CROSS_ENTROPIES if isinstance(loss, kind)), None)
            if kind is not None and type(loss).construct is kind.construct and loss.reduction == "mean":
                place.put(_CountingLoss(loss, _CROSS_ENTROPIES[kind]))
        for loss in filter(_is_sum, {place.cell for place in places(network)}):
            _log.warning(
                f"{type(loss).__name__} has reduction='sum', but a step with micro-batches or ranks takes the mean of "
                "their losses; the network must divide the sum by its rows, or return it with its count"
            )
        object.__setattr__(self, "n_items", _n_items())  # not registered, so that no checkpoint holds it
        self.one = Tensor(1.0, ms.float32)
        self.not_called = Tensor(-1.0, ms.float32)

    def construct(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        ops.assign(self.n_items, self.not_called)
        numbers = loss_numbers(self.network(*inputs))
        n_rows = 1
        if len(inputs) > 0 and isinstance(inputs[0], Tensor) and inputs[0].ndim > 0:
            n_rows = inputs[0].shape[0]
        if len(numbers) == 1:
            mean = numbers[0]
            n_items = ops.stop_gradient(self.n_items + 0.0)
            # n_items is -1 if no cross entropy was called; then each row counts.
            weight = ops.select(n_items < 0, self.one, n_items / n_rows)
        else:
            mean = numbers[0] / ops.maximum(numbers[1], 1.0)
            weight = numbers[1] / n_rows
        return mean, mean * weight, weight


def _is_sum(cell: nn.Cell) -> bool:
    """Return whether a cell is a MindSpore or ``mint`` loss that takes the sum."""
    of_nn = isinstance(cell, nn.LossBase) and cell.reduce and not cell.average
    return of_nn or getattr(cell, "reduction", None) == "sum"


@functools.cache
def _n_items() -> Parameter:
    """Return the number of items that the cross entropies counted in this pass; -1 if none was called."""
    return Parameter(Tensor(-1.0, ms.float32), name="dimred.n_items", requires_grad=False)


class _CountingLoss(nn.Cell):
    """A cross entropy that adds to ``n_items`` the number of labels that count, or the sum of their class weights.

    It divides the loss's sum by that number itself, because MindSpore's mean is 0 / 0 if no label counts; here it is 0.

    Args:
        loss: the cell that it replaces, with ``reduction="mean"``.
        function: the function that this cell calls.
    """

    def __init__(self, loss: nn.Cell, function: Any):
        super().__init__(auto_prefix=False)
        self.function = function
        self.one = Tensor(1.0, ms.float32)
        self.weight = loss.weight
        self.ignore_index = loss.ignore_index
        self.smoothing = (loss.label_smoothing,) if hasattr(loss, "label_smoothing") else ()
        object.__setattr__(self, "n_items", _n_items())

    def construct(self, logits: Tensor, labels: Tensor) -> Tensor:
        if labels.is_floating_point():  # a probability for each class
            n_items = self.one * (labels.size // labels.shape[min(1, labels.ndim - 1)])
        else:
            counts = ops.not_equal(labels, self.ignore_index).astype(labels.dtype)
            n_items = counts.sum().astype(ms.float32)
            if self.weight is not None:
                n_items = (ops.gather(self.weight.astype(ms.float32), labels * counts, 0) * counts).sum()
        ops.assign(self.n_items, ops.maximum(self.n_items, 0.0) + n_items)
        # As float32, because a sum in half precision would overflow where the mean does not.
        total = self.function(logits.astype(ms.float32), labels, self.weight, self.ignore_index, "sum", *self.smoothing)
        return total / ops.select(n_items == 0, self.one, n_items)


class MeanOfBatches(nn.Cell):
    """A cell that returns the whole batch's loss and gradients: means over the ranks, divided by the mean weight.

    Args:
        reduce: maps tensors to a tuple of their means over the ranks; None for one rank, with micro-batches.
    """

    def __init__(self, reduce: nn.Cell | None):
        super().__init__(auto_prefix=False)
        self.reduce = _Same() if reduce is None else reduce

    def construct(self, loss: Tensor, gradients: Any, weight: Tensor, votes: Any) -> tuple[Tensor, Any, Any]:
        means = self.reduce(*gradients, loss, weight, *votes)
        n = len(gradients)
        loss = means[n]
        weight = means[n + 1]
        return loss / weight, _each(ops.partial(ops.mul, 1.0 / weight), means[:n]), means[n + 2 :]


class _Same(nn.Cell):
    def construct(self, *values: Tensor) -> tuple[Tensor, ...]:
        return values
