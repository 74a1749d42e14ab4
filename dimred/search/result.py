"""What one search step reports."""

import math
from enum import Enum
from typing import Any, NamedTuple

import numpy as np


class Outcome(Enum):
    """Why a search step ended as it did; the value is the sentence shown to people."""

    ACCEPTED = "a trial was accepted"
    NO_DECREASE = "no trial was accepted; inside the subspace the weights stay where they were"
    NON_FINITE_GRADIENT = "the loss or its gradient was not finite; the whole step was skipped"


class SearchResult(NamedTuple):
    """The outcome of one step; ``loss`` stands first, where MindSpore's callbacks look for it.

    Attributes:
        loss: Tensor () float32, f(w; B) before the step.
        loss_after: f at the accepted point w + t d on the same batch, before residual momentum and weight decay; equals
            ``loss`` where nothing was accepted.
        outcome: why the step ended.
        step_size: accepted t; 0.0 where nothing was accepted.
        n_trials: trial losses evaluated.
        slope: g_k' d_k, the directional derivative (negative on a descent direction); nan on a skipped step.
        curvature: y's of the pair that was considered; nan without a pair.
        pair_used: whether that pair updated the inverse Hessian.
        condition: condition number of the inverse Hessian the direction came from; nan without one.
        captured_share: |g_k|^2 / |g|^2, the share of the gradient inside the subspace; nan on a skipped step.
        subspace_step: t d_k, (k,) float64; zeros where nothing was accepted.
        moved_inside: |t d|, distance moved inside the subspace.
        moved_outside: |alpha m|, distance moved by the residual momentum.
        decayed: |weight_decay * w|, distance moved by weight decay.
        n_gradients: gradient evaluations the step took.
        grad_norm: |g| before clipping; nan on a skipped step.
        loss_scale: S of this step's gradient; 1 without a loss scale.
        n_overflows: steps skipped so far because of a gradient that was not finite, counted by the loss scale.
        seconds: wall time by part of the step.
    """

    loss: Any
    loss_after: float
    outcome: Outcome
    step_size: float
    n_trials: int
    slope: float
    curvature: float
    pair_used: bool
    condition: float
    captured_share: float
    subspace_step: np.ndarray
    moved_inside: float
    moved_outside: float
    decayed: float
    n_gradients: int
    grad_norm: float
    loss_scale: float
    n_overflows: int
    seconds: dict[str, float]

    @classmethod
    def skipped(cls, n_components: int, loss: Any, seconds: dict[str, float], **scale: Any) -> "SearchResult":
        """A step in which nothing was tried, because the loss or its gradient was not finite."""
        unknown: dict[str, Any] = dict.fromkeys(
            ("slope", "curvature", "condition", "captured_share", "grad_norm"), math.nan
        )
        nothing: dict[str, Any] = dict.fromkeys(("step_size", "moved_inside", "moved_outside", "decayed"), 0.0)
        return cls(
            loss=loss,
            loss_after=float(loss.asnumpy()),
            outcome=Outcome.NON_FINITE_GRADIENT,
            n_trials=0,
            pair_used=False,
            subspace_step=np.zeros(n_components),
            n_gradients=1,
            seconds=seconds,
            **unknown,
            **nothing,
            **scale,
        )

    @property
    def accepted(self) -> bool:
        """Whether the weights moved inside the subspace."""
        return self.outcome is Outcome.ACCEPTED
