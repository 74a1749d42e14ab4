"""Compute a batch's loss and gradient: at the current weights, and along a line."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from mindspore import Parameter, Tensor, mutable, nn

from dimred.search_step.direction import Proposal
from dimred.search_step.moves import Line
from dimred.train_step.gradient import BatchGradient, VectorGradient
from dimred.train_step.micro_batches import GroupGradient
from dimred.train_step.part import GradientPart, LossScale, StepPart, parts_of
from dimred.vectors.weights import Vectors


class Evaluation(NamedTuple):
    """A batch's loss and gradient at the current weights."""

    loss: Tensor  # f(w; B), () float32
    grad: Tensor  # g, as the gradient parts left it, (M,) float32
    grad_square: float  # |g|^2
    raw_norm: float  # |g| before clipping
    telemetry: dict[str, float]  # the numbers that the gradient parts report


class Objective:
    """One batch's loss f and its gradient at the current weights.

    Both are means over all micro-batches on all ranks, weighted as in ``TrainStep``. The gradient *and* every loss are
    averaged in the same way, so that the search compares like with like. No loss includes the loss scale.

    Args:
        network: network and loss in one cell.
        trainable: the parameters, in the order of the weight vector.
        vectors: treats these parameters as one vector.
        reduce: cell that averages this rank's means over all ranks (see ``Ranks.mean``); None for one process.
        micro_batch_size: rows per micro-batch; None takes each batch whole.
        draw_dropout_masks: see ``VectorGradient``.
        loss_scale: the loss scale, or ``LossScale()``.
        parts: all the step's parts.
    """

    def __init__(
        self,
        network: nn.Cell,
        trainable: Sequence[Parameter],
        vectors: Vectors,
        reduce: nn.Cell | None,
        micro_batch_size: int | None,
        draw_dropout_masks: Callable[[int], object],
        loss_scale: LossScale,
        parts: Sequence[StepPart],
    ):
        self._weighs = reduce is not None or micro_batch_size is not None
        gradient = BatchGradient(network, trainable, loss_scale, self._weighs)
        self._batch = VectorGradient(gradient, vectors, draw_dropout_masks)
        if micro_batch_size is not None:
            self._batch = GroupGradient(gradient, vectors, micro_batch_size, draw_dropout_masks)
        self._squared_norm = vectors.squared_norm
        self._gradient_parts = parts_of(GradientPart, parts)
        self._reduce = reduce

    def loss(self, inputs: Sequence[Tensor]) -> float:
        """Return f(w; B) for the network's inputs; this moves the BatchNorm statistics."""
        (loss,) = self._means(*self._batch.loss(inputs))
        return float(loss.asnumpy())

    def raw_gradient(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return f(w; B), () float32, and its gradient, (M,) float32, unclipped; this moves BatchNorm's statistics."""
        loss, grad = self._means(*self._batch.loss_and_gradient(inputs))
        return loss, grad

    def _means(self, *values: Tensor) -> Sequence[Tensor]:
        """Average the weighted values and, last, the weight over the ranks; return the values over the mean weight."""
        *totals, weight = values if self._reduce is None else self._reduce(*values)
        return [value / weight for value in totals] if self._weighs else totals

    def gradient(self, inputs: Sequence[Tensor]) -> Evaluation:
        """Return f(w; B) and g, as the gradient parts leave it; this moves BatchNorm's statistics."""
        loss, grad = self.raw_gradient(inputs)
        telemetry = dict[str, float]()
        for part in self._gradient_parts:
            # A tuple that is not mutable would be a constant in the graph, so each gradient would compile a new graph.
            (grad,), numbers = part(mutable((grad,)))
            values = [float(number.asnumpy()) for number in numbers]
            telemetry |= dict(zip(part.telemetry, values, strict=True))
        square = self._squared_norm(grad)
        return Evaluation(loss, grad, square, telemetry.pop("grad_norm", math.sqrt(square)), telemetry)


@dataclass(eq=False)
class LineObjective:
    """The loss of one batch along a line of weights; see ``LineFunction``.

    phi'(t) = g_k(t)' d_k, with g_k(t) the unclipped subspace gradient at w + t d. (phi'(0) is the proposal's slope,
    computed from the clipped gradient; clipping makes it smaller but keeps its sign.)

    Attributes:
        line: w + t d.
        proposal: the direction d_k in the subspace, and its slope at t = 0.
        first_loss: phi(0).
        reset: called before each pass, to restore the untrained parameters to their values in the first pass.
        objective: computes a batch's loss and gradient.
        inputs: the batch.
        project: g -> g_k.
        n_trials: step sizes at which the loss or the slope was computed.
        n_forward, n_backward: passes over the batch that these took.
    """

    line: Line
    proposal: Proposal
    first_loss: float
    reset: Callable[[], object]
    objective: Objective
    inputs: Sequence[Tensor]
    project: Callable[[Tensor], np.ndarray]
    n_trials: int = 0
    n_forward: int = 0
    n_backward: int = 0

    def __post_init__(self) -> None:
        self.is_scaled = self.proposal.is_scaled
        self._losses = {0.0: self.first_loss}
        self._slopes = {0.0: self.proposal.slope}

    def loss(self, step_size: float) -> float:
        """Return phi(t), with a forward pass unless it is known."""
        if step_size not in self._losses:
            self._go_to(step_size)
            self._losses[step_size] = self.objective.loss(self.inputs)
        return self._losses[step_size]

    def slope(self, step_size: float) -> float:
        """Return phi'(t), with a forward and a backward pass unless it is known."""
        if step_size not in self._slopes:
            self._go_to(step_size)
            self.n_backward += 1
            loss, grad = self.objective.raw_gradient(self.inputs)
            self._losses.setdefault(step_size, float(loss.asnumpy()))
            self._slopes[step_size] = float(self.project(grad) @ self.proposal.direction)
        return self._slopes[step_size]

    def moves(self, step_size: float) -> bool:
        """Return whether w + t d differs from w."""
        self.line.move_to(step_size)
        return self.line.has_moved()

    def _go_to(self, step_size: float) -> None:
        self.n_trials += step_size not in self._losses
        self.n_forward += 1
        self.line.move_to(step_size)
        self.reset()
