"""Loss and gradient of one batch at the current weights."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, nn

from dimred.train_step.gradient import BatchGradient, GroupGradient
from dimred.train_step.loss_scale import NoLossScale
from dimred.vectors.weight_vector import squared_norm


class Evaluation(NamedTuple):
    """A batch's loss and gradient at the weights as they stand.

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

    def share_of(self, subspace_grad: np.ndarray) -> float:
        """|g_k|^2 / |g|^2; nan where g is 0."""
        return float(subspace_grad @ subspace_grad) / self.grad_square if self.grad_square > 0 else math.nan


class Objective:
    """Loss and gradient of one batch, at the weights as they stand.

    Both answers are means over the whole batch: over all micro-batches of all ranks. The gradient *and* every loss are
    averaged here, in the same way, so that the search compares like with like.

    Args:
        network: network and loss in one cell; returns the scalar mean loss of a batch.
        trainable: the parameters, in the order of the weight vector.
        micro_batch_size: rows of a micro-batch; None takes every batch whole.
        reduce: this rank's means -> the means over all ranks, see ``KeepLocal``; None in a single process.
        draw_dropout_masks: called with a micro-batch's number before its forward pass.
        loss_scale: of the gradient; every loss is reported without it.
        clipping: of the gradient.
    """

    def __init__(
        self,
        network: nn.Cell,
        trainable: Sequence[Parameter],
        micro_batch_size: int | None = None,
        reduce: nn.Cell | None = None,
        draw_dropout_masks: Callable[[int], None] | None = None,
        loss_scale: NoLossScale | None = None,
        clipping: nn.Cell | None = None,
    ):
        gradient = BatchGradient(network, trainable, loss_scale)
        self._group = GroupGradient(gradient, micro_batch_size, draw_dropout_masks)
        self._clip = None if clipping is None else _ClipVector(clipping)
        self._mean_over_ranks = _keep_local if reduce is None else reduce

    def loss(self, inputs: Sequence[Tensor]) -> float:
        """f(w; B)."""
        (loss,) = self._mean_over_ranks(self._group.loss(inputs))
        return float(loss.asnumpy())

    def gradient(self, inputs: Sequence[Tensor]) -> Evaluation:
        """f(w; B) and g."""
        loss, grad = self._mean_over_ranks(*self._group.loss_and_gradient(inputs))
        square = squared_norm(grad)
        norm = math.sqrt(square)
        if self._clip is None or not math.isfinite(norm):
            return Evaluation(loss, grad, square, norm)
        grad = self._clip(grad)
        return Evaluation(loss, grad, squared_norm(grad), norm)


class _ClipVector(nn.Cell):
    """Clipping of the gradient as one vector (M,)."""

    def __init__(self, clipping: nn.Cell):
        super().__init__(auto_prefix=False)
        self.clipping = clipping

    def construct(self, grad: Tensor) -> Tensor:
        clipped, _ = self.clipping((grad,))
        return clipped[0]


def _keep_local(*values: Tensor) -> tuple[Tensor, ...]:
    """``KeepLocal``, without a graph of its own."""
    return values
