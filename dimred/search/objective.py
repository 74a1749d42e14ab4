"""Loss and gradient of one batch at the current weights."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mindspore import Parameter, Tensor, mutable, nn

from dimred.train_step.gradient import BatchGradient, GroupGradient
from dimred.train_step.loss_scale import NoLossScale
from dimred.vectors.base import Vectors


class Evaluation(NamedTuple):
    """A batch's loss and gradient at the current weights.

    Attributes:
        loss: f(w; B), Tensor () float32.
        grad: g, clipped where asked for, Tensor (M,) float32.
        grad_square: |g|^2 of that g.
        raw_norm: |g| before clipping.
    """

    loss: Tensor
    grad: Tensor
    grad_square: float
    raw_norm: float


class Objective:
    """Loss and gradient of one batch at the current weights.

    Both are means over the whole batch: over all micro-batches of all ranks. The gradient *and* every loss are averaged
    here, in the same way, so that the search compares like with like.

    Args:
        network: network and loss in one cell; returns the scalar mean loss of a batch.
        trainable: the parameters, in the order of the weight vector.
        vectors: of these parameters.
        micro_batch_size: rows of a micro-batch; None takes every batch whole.
        reduce: this rank's means -> the means over all ranks, see ``Ranks.mean``.
        draw_dropout_masks: called with a micro-batch's number before its forward pass.
        loss_scale: of the gradient; every loss is reported without it.
        clipping: of the gradient.
    """

    def __init__(
        self,
        network: nn.Cell,
        trainable: Sequence[Parameter],
        vectors: Vectors,
        micro_batch_size: int | None,
        reduce: nn.Cell,
        draw_dropout_masks: Callable[[int], object],
        loss_scale: NoLossScale,
        clipping: nn.Cell,
    ):
        gradient = BatchGradient(network, trainable, loss_scale)
        self._group = GroupGradient(gradient, micro_batch_size, vectors, draw_dropout_masks)
        self._squared_norm = vectors.squared_norm
        self._clip = clipping
        self._mean_over_ranks = reduce

    def loss(self, inputs: Sequence[Tensor]) -> float:
        """f(w; B)."""
        (loss,) = self._mean_over_ranks(self._group.loss(inputs))
        return float(loss.asnumpy())

    def gradient(self, inputs: Sequence[Tensor]) -> Evaluation:
        """f(w; B) and g; a gradient that is not finite is not clipped."""
        loss, raw = self._mean_over_ranks(*self._group.loss_and_gradient(inputs))
        square = self._squared_norm(raw)
        norm = math.sqrt(square)
        # A tuple that is not mutable would be a constant of the graph, and each gradient would compile a new one.
        (grad,), _ = self._clip(mutable((raw,))) if math.isfinite(norm) else ((raw,), norm)
        return Evaluation(loss, grad, square if grad is raw else self._squared_norm(grad), norm)
