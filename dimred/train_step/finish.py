"""Finish a training step whose gradient is known: reduce, clip, update and average, or drop it."""

import math
from typing import Any

import mindspore as ms
from mindspore import Tensor, amp, nn, ops

from dimred.train_step.loss_scale import StaticLossScale
from dimred.vectors.weights import GraphCopies, Unflatten

_each = ops.HyperMap()  # a graph compiles it much faster than a loop


class Finish(nn.Cell):
    """A cell that finishes a step, given loss and gradient of this rank's batch, both times the batch's weight.

    It reduces over the ranks, divides by the weight, clips, updates the weights, and moves the average.

    With ``untrained_parameters``, a step can be dropped: by the loss scale if its gradient is not finite, or by a
    rank's vote to leave. Then nothing is updated, and what the forward pass changed, such as BatchNorm's statistics,
    is restored.
    """

    def __init__(
        self,
        optimizer: nn.Optimizer,
        loss_scale: StaticLossScale | None,
        reduce: nn.Cell | None,
        weighs: bool,
        votes: bool,
        clipping: nn.Cell | None,
        ema: nn.Cell | None,
        untrained_parameters: GraphCopies | None,
    ):
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.loss_scale: Any = loss_scale
        self.drops_overflow = loss_scale is not None and loss_scale.drops_overflow
        self.reduce: Any = reduce
        self.weighs = weighs
        self.votes = votes
        self.clipping = clipping
        self.ema = ema
        self.untrained_parameters: Any = untrained_parameters
        # Tensors, because a graph that returns Python numbers calls the interpreter for them.
        self.yes, self.no, self.unknown = Tensor(True), Tensor(False), Tensor(math.nan, ms.float32)
        self.no_scale, self.no_overflows = Tensor(1.0, ms.float32), Tensor(0, ms.int32)

    def construct(
        self,
        loss: Tensor,
        gradients: tuple[Tensor, ...],
        weight: Tensor,
        untrained_values: tuple[Tensor, ...],
        tally: Any,
    ) -> tuple[Tensor, ...]:
        scale, n_overflows, norm, leaves = self.no_scale, self.no_overflows, self.unknown, self.no
        if self.loss_scale is not None:
            scale = self.loss_scale.scale + 0.0
        if self.reduce is not None:
            votes = (tally[0],) if self.votes else ()
            means, n = self.reduce(*gradients, loss, weight, *votes), len(gradients)
            gradients, loss, weight = means[:n], means[n], means[n + 1]
            if self.votes:
                leaves = means[n + 2] > 0
        if self.weighs:
            loss, gradients = loss / weight, _each(ops.partial(ops.mul, 1.0 / weight), gradients)
        clipped_gradients = gradients
        if self.clipping is not None:
            clipped_gradients, norm = self.clipping(gradients)
        if not self.votes:
            applied = self._apply(gradients, clipped_gradients, untrained_values)
        elif leaves:
            self.untrained_parameters.restore(untrained_values)
            applied = self.no
        else:
            applied = self._apply(gradients, clipped_gradients, untrained_values)
        if self.drops_overflow:
            n_overflows = self.loss_scale.n_overflows + 0
        if not self.votes:
            return loss, applied, norm, scale, n_overflows
        leave = leaves.astype(ms.float32)
        return loss, applied, norm, scale, n_overflows, ops.stack((leave, tally[1] + 1.0 - leave))

    def _apply(
        self, gradients: tuple[Tensor, ...], clipped_gradients: tuple[Tensor, ...], untrained_values: tuple[Tensor, ...]
    ) -> Tensor:
        if not self.drops_overflow:
            return self._update(clipped_gradients)
        applied = amp.all_finite(gradients)
        if applied:
            self._update(clipped_gradients)
        else:
            self.untrained_parameters.restore(untrained_values)
        self.loss_scale.observe(applied)
        return applied

    def _update(self, gradients: tuple[Tensor, ...]) -> Tensor:
        update = self.optimizer(gradients)
        if self.ema is not None:
            update = ops.depend(self.ema(), update)
        return ops.depend(self.yes, update)


class FinishVector(nn.Cell):
    """A cell that calls ``Finish`` for a gradient vector (M,); with votes, the tally precedes ``untrained_values``."""

    def __init__(self, finish: Finish, optimizer: nn.Optimizer):
        super().__init__(auto_prefix=False)
        self.finish = finish
        self.unflatten = Unflatten(optimizer.parameters)

    def construct(self, loss: Tensor, vector: Tensor, weight: Tensor, *untrained_values: Tensor) -> tuple[Tensor, ...]:
        tally = None
        if self.finish.votes:
            tally, untrained_values = untrained_values[0], untrained_values[1:]
        return self.finish(loss, self.unflatten(vector), weight, untrained_values, tally)
