"""Compute loss and gradient of one batch at the current weights."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mindspore import Parameter, Tensor, mutable, nn

from dimred.train_step.gradient import BatchGradient, GroupGradient
from dimred.train_step.loss_scale import StaticLossScale
from dimred.vectors.weights import Vectors


class Evaluation(NamedTuple):
    """A batch's loss and gradient at the current weights."""

    loss: Tensor  # f(w; B), () float32
    grad: Tensor  # g, clipped if clipping is on, (M,) float32
    grad_square: float  # |g|^2 of that g
    raw_norm: float  # |g| before clipping


class Objective:
    """The loss f and its gradient, of one batch at the current weights.

    Both are means over the whole batch: over all micro-batches of all ranks. The gradient *and* every loss are averaged
    here, in the same way, so that the search compares like with like. No loss includes the loss scale.

    Args:
        network: network and loss in one cell.
        trainable: the parameters, in the order of the weight vector.
        vectors: vectors of these parameters.
        reduce: cell that maps this rank's means to those over all ranks, see ``Ranks.mean``; None for one process.
        micro_batch_size, draw_dropout_masks: see ``GroupGradient``.
        loss_scale, clipping: see ``SearchStep``; None if off.
    """

    def __init__(
        self,
        network: nn.Cell,
        trainable: Sequence[Parameter],
        vectors: Vectors,
        reduce: nn.Cell | None,
        micro_batch_size: int | None,
        draw_dropout_masks: Callable[[int], object],
        loss_scale: StaticLossScale | None,
        clipping: nn.Cell | None,
    ):
        gradient = BatchGradient(network, trainable, loss_scale)
        self._group = GroupGradient(gradient, micro_batch_size, vectors, draw_dropout_masks)
        self._squared_norm = vectors.squared_norm
        self._clip = clipping
        self._reduce = reduce

    def loss(self, inputs: Sequence[Tensor]) -> float:
        """Return f(w; B) for the network's inputs; BatchNorm's statistics move."""
        loss = self._group.loss(inputs)
        if self._reduce is not None:
            (loss,) = self._reduce(loss)
        return float(loss.asnumpy())

    def gradient(self, inputs: Sequence[Tensor]) -> Evaluation:
        """Return f(w; B) and g, which is clipped if clipping is on; BatchNorm's statistics move."""
        loss, grad = self._group.loss_and_gradient(inputs)
        if self._reduce is not None:
            loss, grad = self._reduce(loss, grad)
        square = self._squared_norm(grad)
        raw_norm = math.sqrt(square)
        if self._clip is not None:
            # A tuple that is not mutable would be a constant of the graph, so each gradient would compile a new graph.
            (grad,), norm = self._clip(mutable((grad,)))
            square, raw_norm = self._squared_norm(grad), float(norm.asnumpy())
        return Evaluation(loss, grad, square, raw_norm)
