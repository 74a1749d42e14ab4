"""Loss and gradient of a batch, taken whole or in micro-batches."""

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops

from dimred.errors import ConfigError, check_number, shown
from dimred.train_step.mean_loss import MeanLoss, WeightedLoss
from dimred.train_step.part import LossScale
from dimred.train_step.statistics import moving_statistics
from dimred.vectors.weights import Vectors, make_vectors


class BatchGradient(nn.Cell):
    """A cell that returns loss and gradient of a batch, each times the batch's weight, and that weight.

    Args:
        network: network and loss in one cell; returns the scalar mean loss of a batch, or (sum, count).
        parameters: the parameters to differentiate by.
        loss_scale: scales the loss before its gradient is taken, and unscales the gradient; ``LossScale()`` for none.
        weighs: whether the batch is a part of a larger one, and has a weight; see ``WeightedLoss``. If not, it is 1.

    Outputs:
        the loss, () float32; a tuple of float32 gradients in the parameters' shapes; and the weight, () float32.
    """

    def __init__(self, network: nn.Cell, parameters: Sequence[Parameter], loss_scale: LossScale, weighs: bool = False):
        super().__init__(auto_prefix=False)
        self.network = network
        self.loss_scale = loss_scale
        self.weighs = weighs
        loss = WeightedLoss(network) if weighs else MeanLoss(network)
        object.__setattr__(self, "loss", loss)  # MindSpore visits all registered cells at every call
        self.gradient = ops.value_and_grad(
            _ScaledLoss(loss, loss_scale), None, ms.ParameterTuple(parameters), has_aux=True
        )

    def construct(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        (_, total, weight), gradients = self.gradient(*inputs)
        # A graph that touches each gradient, even for a cast that does nothing, takes 3.5 times their size in memory.
        return total, self.loss_scale.unscaled(gradients, weight), weight


class _ScaledLoss(nn.Cell):
    """A cell that returns what is differentiated, the loss f times the weight, and the weight."""

    def __init__(self, loss: nn.Cell, loss_scale: LossScale):
        super().__init__(auto_prefix=False)
        self.loss = loss
        self.loss_scale = loss_scale

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, total, weight = self.loss(*inputs)
        return self.loss_scale.scaled(mean, total), total, weight


class GroupGradient:
    """Loss and gradient of a group of micro-batches, as if it were one batch.

    With the weight w_i of a micro-batch B_i, the items for each row that its mean is over (see ``WeightedLoss``), and
    a_i = rows of B_i / rows of the group::

        loss = sum_i a_i w_i f(B_i);   gradient = sum_i a_i w_i grad f(B_i);   weight = sum_i a_i w_i

    Divided by the weight, these are the loss and the gradient of the whole batch. They are divided once, after they are
    averaged over the ranks. The sums are float32. The host calls one small graph for each micro-batch.

    BatchNorm normalises each micro-batch by itself. ``loss_and_gradient`` moves its moving statistics once, by the mean
    of the micro-batches' changes. Each micro-batch starts from the statistics before the group, r, and its forward pass
    leaves r + c (b_i - r), where b_i is its own mean or variance; the group leaves r + c (mean(b_i) - r), the mean of
    these. Without this, n micro-batches would move the statistics n times in one step.

    Args:
        gradient: computes loss and gradient of a micro-batch.
        rows: rows of a micro-batch; None takes every group whole, at no cost.
        vectors: vectors of the parameters that ``gradient`` differentiates by.
        draw_dropout_masks: called with the micro-batch's number before each forward pass.

    Raises:
        ConfigError: ``rows`` is below 1, or the network has a BatchNorm of ``mindspore.mint``.
    """

    def __init__(
        self,
        gradient: BatchGradient,
        rows: int | None,
        vectors: Vectors,
        draw_dropout_masks: Callable[[int], object] = lambda number: None,
    ):
        if rows is not None:
            check_number("micro_batch_size", rows, at_least=1, whole=True)
        self._loss = gradient.loss
        self._gradient = gradient
        self._vectors = vectors
        moving = moving_statistics(gradient.network)
        self._statistics = make_vectors(moving) if moving else None
        self._rows = rows
        self._draw_dropout_masks = draw_dropout_masks

    def loss(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the loss times the weight, and the weight, () float32 each.

        Each micro-batch moves BatchNorm's statistics: the caller restores them.

        Args:
            inputs: the network's inputs for the whole group; their first dimension counts the rows.

        Raises:
            ConfigError: the inputs can't be cut, see ``cut``.
        """
        batches = cut(inputs, self._rows)
        total: Any = None
        weight: Any = None
        for number, (part, fraction) in enumerate(batches):
            self._draw_dropout_masks(number)
            _, loss, batch_weight = self._loss(*part)
            if len(batches) == 1:
                return loss, batch_weight
            total, weight = _plus(total, loss, fraction), _plus(weight, batch_weight, len(part[0]))
        return total, weight / len(inputs[0])

    def loss_and_gradient(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss and gradient times the weight, () and (M,) float32, and the weight, () float32; see ``loss``."""
        batches = cut(inputs, self._rows)
        statistics = None if len(batches) == 1 else self._statistics
        before = None if statistics is None else statistics.read()
        loss = vector = after = None
        weight: Any = None
        for number, (part, fraction) in enumerate(batches):
            self._draw_dropout_masks(number)
            batch_loss, gradients, batch_weight = self._gradient(*part)
            batch_vector = self._vectors.flatten(gradients)
            if len(batches) == 1:
                return batch_loss, batch_vector, batch_weight
            if statistics is not None:
                after = _plus(after, statistics.read(), fraction)
                statistics.put((1.0, before))
            loss, vector = _plus(loss, batch_loss, fraction), _plus(vector, batch_vector, fraction)
            weight = _plus(weight, batch_weight, len(part[0]))  # whole numbers: n weights of 1 are exactly n
        if statistics is not None:
            statistics.put((1.0, after))
        return loss, vector, weight / len(inputs[0])


def _plus(total: Tensor | None, value: Tensor, fraction: float) -> Tensor:
    """Return ``total + fraction * value``, made by one kernel, or ``fraction * value`` if ``total`` is None."""
    return value * fraction if total is None else mint.add(total, value, alpha=fraction)


def cut(inputs: Sequence[Tensor], rows: int | None) -> list[tuple[tuple[Tensor, ...], float]]:
    """Cut a batch into micro-batches of ``rows`` rows, the last of which may have fewer.

    Args:
        inputs: the network's inputs; their first dimension counts the rows.
        rows: rows of a micro-batch; None for the whole batch in one.

    Returns:
        For each micro-batch, its rows of each input, and its fraction of the batch's rows; the fractions sum to 1.

    Raises:
        ConfigError: ``rows`` is given, and an input is no tensor, has no rows, or not as many as the others.
    """
    if rows is None:
        return [(tuple(inputs), 1.0)]
    for number, value in enumerate(inputs, start=1):
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"micro_batch_size is {rows}, but input {number} of the step is {shown(value)}; to be cut into "
                "micro-batches all inputs must be tensors: pass others when the network is made"
            )
    shapes = [tuple(value.shape) for value in inputs]
    if not shapes or any(not shape or shape[0] != shapes[0][0] or shape[0] == 0 for shape in shapes):
        raise ConfigError(
            f"micro_batch_size is {rows}, but the step's inputs have the shapes {shapes}; to be cut into micro-batches "
            "they must all have the same number of rows in their first dimension"
        )
    n_rows = shapes[0][0]
    if rows >= n_rows:
        return [(tuple(inputs), 1.0)]
    return [
        (tuple(value[first : first + rows] for value in inputs), min(rows, n_rows - first) / n_rows)
        for first in range(0, n_rows, rows)
    ]
