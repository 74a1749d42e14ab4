"""Finish a training step whose gradient is known: reduce and change the gradient, then update or drop the step."""

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
from mindspore import Tensor, amp, nn, ops

from dimred.train_step.part import GradientPart, LossScale, StepPart, WeightsPart, parts_of
from dimred.vectors.weights import GraphCopies


class Finish(nn.Cell):
    """A cell that finishes a step, given this rank's loss and gradient, each multiplied by the batch's weight.

    The step is dropped if its gradient is not finite and the loss scale drops such steps, or if a rank votes to leave.
    Nothing is updated then, and everything that the forward pass changed, such as BatchNorm's statistics, is restored.

    Args:
        optimizer: updates the weights.
        parts: all the step's parts.
        loss_scale: the loss scale among them, or ``LossScale()``.
        combine: ``whole_batch`` or ``MeanOfBatches``.
        untrained_parameters: the parameters to restore when a step is dropped; None if no step can be dropped.
        votes: whether the ranks vote on each step.

    Attributes:
        telemetry: names of the numbers that follow the loss and the applied flag in its outputs.
    """

    def __init__(
        self,
        optimizer: nn.Optimizer,
        parts: Sequence[StepPart],
        loss_scale: LossScale,
        combine: Callable[..., Any],
        untrained_parameters: GraphCopies | None,
        votes: bool,
    ):
        super().__init__(auto_prefix=False)
        self.loss_scale = loss_scale
        self.combine = combine
        gradient_parts = parts_of(GradientPart, parts)
        self.gradient_parts = _cells(gradient_parts)
        self.update: nn.Cell = _Update(optimizer, parts_of(WeightsPart, parts))
        if loss_scale.drops_overflow:
            self.update = _UpdateIfFinite(self.update, loss_scale, untrained_parameters)
        if votes:
            self.update = _UpdateIfNoneLeaves(self.update, untrained_parameters)
        self.votes = votes
        self.telemetry = tuple(name for part in (*gradient_parts, loss_scale) for name in part.telemetry)

    def construct(
        self,
        loss: Tensor,
        gradients: tuple[Tensor, ...],
        weight: Tensor,
        untrained_values: tuple[Tensor, ...],
        tally: Any,
    ) -> tuple[Tensor, ...]:
        scale = self.loss_scale.scale_of_step()
        votes = (tally[0],) if self.votes else ()
        loss, gradients, votes = self.combine(loss, gradients, weight, votes)
        changed = gradients
        numbers = ()
        for part in self.gradient_parts:
            changed, reported = part(changed)
            numbers = numbers + reported
        applied = self.update(gradients, changed, untrained_values, votes)
        values = (loss, applied, *numbers, *scale, *self.loss_scale.overflows())
        if not self.votes:
            return values
        leave = (votes[0] > 0).astype(ms.float32)
        return (*values, ops.stack((leave, tally[1] + 1.0 - leave)))


def _cells(parts: Sequence[StepPart]) -> Any:
    """Return the parts as a list of cells; without parts, return an empty tuple, which no call has to visit."""
    return nn.CellList(list(parts), auto_prefix=False) if parts else ()


def whole_batch(loss: Tensor, gradients: Any, weight: Tensor, votes: Any) -> tuple[Tensor, Any, Any]:
    """Return loss, gradients and votes unchanged, for a step on one rank that takes its batch whole."""
    return loss, gradients, votes


class _Update(nn.Cell):
    """A cell that updates the weights with the changed gradients, and returns True, () bool."""

    def __init__(self, optimizer: nn.Optimizer, weights_parts: Sequence[WeightsPart]):
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.weights_parts = _cells(weights_parts)
        self.yes = Tensor(True)  # a tensor, because a graph that returns Python numbers calls the interpreter for them

    def construct(self, gradients: Any, changed: Any, untrained_values: Any, votes: Any) -> Tensor:
        update = self.optimizer(changed)
        for part in self.weights_parts:
            update = ops.depend(part(), update)
        return ops.depend(self.yes, update)


class _UpdateIfFinite(nn.Cell):
    """A cell that updates and returns True unless a gradient is not finite; either way it tells the loss scale."""

    def __init__(self, update: nn.Cell, loss_scale: LossScale, untrained_parameters: Any):
        super().__init__(auto_prefix=False)
        self.update = update
        self.loss_scale = loss_scale
        self.untrained_parameters = untrained_parameters

    def construct(self, gradients: Any, changed: Any, untrained_values: Any, votes: Any) -> Tensor:
        applied = amp.all_finite(gradients)
        if applied:
            self.update(gradients, changed, untrained_values, votes)
        else:
            self.untrained_parameters.restore(untrained_values)
        self.loss_scale.observe(applied)
        return applied


class _UpdateIfNoneLeaves(nn.Cell):
    """A cell that updates unless a rank voted to leave; it returns whether it updated."""

    def __init__(self, update: nn.Cell, untrained_parameters: Any):
        super().__init__(auto_prefix=False)
        self.update = update
        self.untrained_parameters = untrained_parameters
        self.no = Tensor(False)

    def construct(self, gradients: Any, changed: Any, untrained_values: Any, votes: Any) -> Tensor:
        if votes[0] > 0:
            self.untrained_parameters.restore(untrained_values)
            applied = self.no
        else:
            applied = self.update(gradients, changed, untrained_values, votes)
        return applied
