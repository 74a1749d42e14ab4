"""What a loss takes its mean over: the weight of a micro-batch, or of a rank, in the mean of the whole batch."""

import logging
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore import dtype as mstype

from dimred.errors import ConfigError
from dimred.train_step.network_state import places

_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss, mint.nn.CrossEntropyLoss, mint.nn.NLLLoss)
_log = logging.getLogger(__name__)
_NOT_CALLED = -1.0


class WeighedLoss(nn.Cell):
    """A cell that returns the mean loss of a pass, and how many items for each row of the batch the mean is over.

    With means f_i over n_i items, such as labels that are not ignored, the mean over all items of all parts i is

        f = sum_i n_i f_i / sum_i n_i

    n_i is known of MindSpore's cross entropies: it is the number of labels that are not ``ignore_index``, or, with
    class weights, the sum of the weights of these labels. Each such cell with ``reduction="mean"`` is replaced, in its
    place in the network, by one that does the same and counts. Any other network can return the sum of the loss, and
    n_i as an integer tensor, in place of the mean; one that does not has a mean over its rows. Several cross entropies
    have one n_i, the sum of theirs, so f is exact only where these are in proportion in all parts.

    Args:
        network: network and loss in one cell, which returns the mean loss of a batch, or (sum, count).
        weighs: whether to count; if not, the weight is 1, and the network stays as it is.

    Inputs:
        the network's inputs; the first dimension of the first one counts the rows.

    Outputs:
        the mean loss, and n_i / rows, () float32 each.

    Raises:
        ConfigError: it is to count, but holds the losses of several earlier steps; or, at the first call, the network
            returns neither one number nor a pair (sum, count) with an integer count.
    """

    def __init__(self, network: nn.Cell, weighs: bool):
        super().__init__(auto_prefix=False)
        self.network = network
        self.weighs = weighs
        label_count = _count_labels(network) if weighs else None
        self.counts = label_count is not None
        object.__setattr__(self, "label_count", label_count)  # not registered, so that no checkpoint holds it
        self.one, self.not_called = Tensor(1.0, ms.float32), Tensor(_NOT_CALLED, ms.float32)

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.counts:
            ops.assign(self.label_count, self.not_called)
        loss = self.network(*inputs)
        n_rows = 1
        if self.weighs and len(inputs) > 0 and isinstance(inputs[0], Tensor) and inputs[0].ndim > 0:
            n_rows = inputs[0].shape[0]
        if isinstance(loss, (tuple, list)):
            _check_pair(len(loss))
            _check_tensors(isinstance(loss[0], Tensor) and isinstance(loss[1], Tensor))
            _check_sum_and_count(loss[0].shape, loss[1].shape, loss[1].dtype)
            total, n_items = loss[0].astype(ms.float32), loss[1].astype(ms.float32)
            if not self.weighs:
                return total / n_items, self.one
            return total / ops.select(n_items == 0, self.one, n_items), n_items / n_rows
        _check_tensors(isinstance(loss, Tensor))
        _check_scalar(loss.shape)
        loss = loss.astype(ms.float32)
        if not self.counts:
            return loss, self.one
        n_items = ops.stop_gradient(self.label_count + 0.0)
        return loss, ops.select(n_items < 0, self.one, n_items / n_rows)


class _CountingLoss(nn.Cell):
    """A loss that adds to ``label_count`` how many of its labels count, or the sum of their class weights.

    If no label of a batch counts, the mean would be 0 / 0. Then the loss is that of other labels times 0, so that it is
    0, and so is its gradient.

    Args:
        loss: one of MindSpore's cross entropies, with ``reduction="mean"``.
        label_count: () float32; negative if nothing has been added.
    """

    def __init__(self, loss: nn.Cell, label_count: Parameter):
        super().__init__(auto_prefix=False)
        self.loss = loss
        object.__setattr__(self, "label_count", label_count)
        self.ignore_index = loss.ignore_index
        self.weight = loss.weight
        self.class_that_counts = 1 if self.ignore_index == 0 else 0
        if self.weight is not None:
            heaviest_first = np.argsort(-self.weight.asnumpy().astype(np.float32), kind="stable")
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


class _MeanLoss(nn.Cell):
    """The mean of a loss with ``reduction="none"``."""

    def __init__(self, loss: nn.Cell):
        super().__init__(auto_prefix=False)
        self.loss = loss

    def construct(self, *inputs: Tensor, **named_inputs: Tensor) -> Tensor:
        return self.loss(*inputs, **named_inputs).astype(ms.float32).mean()


def mend_binary_cross_entropy(network: nn.Cell) -> None:
    """Let ``nn.BCEWithLogitsLoss`` take its mean outside its kernel, in PyNative, in its place in the network.

    There MindSpore's kernel (2.10, CPU) divides the gradient of the mean by the number of elements that the process's
    first call had, so that it is wrong by a factor for any other batch.
    """
    if ms.get_context("mode") == ms.PYNATIVE_MODE:
        for place in places(network):
            cell = place.cell
            is_ours = isinstance(cell, nn.BCEWithLogitsLoss) and type(cell).construct is nn.BCEWithLogitsLoss.construct
            if is_ours and cell.reduction == "mean":
                place.put(_MeanLoss(nn.BCEWithLogitsLoss("none", cell.weight, cell.pos_weight)))


def warn_of_sums(network: nn.Cell) -> None:
    """Warn of a loss that is a sum: in a mean over parts of the batch it would be smaller than over the whole."""
    for place in places(network):
        cell = place.cell
        is_sum = getattr(cell, "reduction", None) == "sum"
        if isinstance(cell, nn.LossBase):
            is_sum = is_sum or (getattr(cell, "reduce", False) and not getattr(cell, "average", True))
        if is_sum:
            _log.warning(
                f"{type(cell).__name__} has reduction='sum', and a step with micro-batches or ranks takes the mean of "
                "their losses, unless the network divides the sum by its rows, or returns it with its count"
            )
            return


def _count_labels(network: nn.Cell) -> Parameter | None:
    """Let every cross entropy of the network count, in its place; return their common count, None without one."""
    cells = places(network)
    counts = {id(one.cell.label_count): one.cell.label_count for one in cells if isinstance(one.cell, _CountingLoss)}
    if len(counts) > 1:
        raise ConfigError(
            f"the network holds the losses of {len(counts)} earlier steps with micro-batches or ranks, each of which "
            "counts its labels apart; make the network's losses anew for a step of all of them"
        )
    label_count = next(iter(counts.values()), None)
    for place in cells:
        is_counted = isinstance(place.owner, _CountingLoss)
        if isinstance(place.cell, _LOSSES) and place.cell.reduction == "mean" and not is_counted:
            if label_count is None:
                label_count = Parameter(Tensor(_NOT_CALLED, ms.float32), name="counted_labels", requires_grad=False)
            place.put(_CountingLoss(place.cell, label_count))
    return label_count


@ops.constexpr  # so that a graph calls it when it is compiled, before any step
def _check_scalar(shape: tuple[int, ...]) -> None:
    if shape != ():
        raise ConfigError(
            f"the network gives a loss of the shape {shape}; a step needs one number for the batch, of the shape (): "
            'take the mean (reduction="mean")'
        )


@ops.constexpr
def _check_tensors(are_tensors: bool) -> None:
    if not are_tensors:
        raise ConfigError(
            "the network gives None, a dictionary, or another value that is no tensor, as its loss; a step needs the "
            "mean loss alone, or its sum and its count: return one tensor of the shape (), or two"
        )


@ops.constexpr
def _check_pair(n_values: int) -> None:
    if n_values != 2:
        raise ConfigError(
            f"the network gives {n_values} values; a step needs the mean loss alone, or its sum and its count: return "
            "nothing else"
        )


@ops.constexpr
def _check_sum_and_count(total_shape: tuple[int, ...], count_shape: tuple[int, ...], count_type: Any) -> None:
    """Check that a pair is a sum and an integer count; a loss and an accuracy, say, must not be divided."""
    if (total_shape, count_shape) != ((), ()) or count_type not in (mstype.int32, mstype.int64):
        raise ConfigError(
            f"the network gives 2 values, of the shapes {total_shape} and {count_shape}, the second of the type "
            f"{count_type}; a step needs the mean loss alone, or its sum and its count, one number each, the count "
            "int32 or int64: return nothing else"
        )
