"""Momentum SGD in the subspace."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dimred.search_step.direction import Proposal


class MomentumState(NamedTuple):
    """The memory of projected SGD between steps.

    Attributes:
        velocity: v, (k,) float64.
        n_steps: number of accepted steps so far, for which the schedule gives the next rate.
    """

    velocity: np.ndarray
    n_steps: int = 0


class ProjectedSGD:
    """The rule of momentum SGD: v <- momentum v + g_k;  d_k = -rate(n) v.

    (Li et al., Low Dimensional Trajectory Hypothesis is True, 2022, P-SGD; on a basis of raw snapshots this is
    trainable weight averaging, Li et al., Trainable Weight Averaging, 2023.)

    Args:
        n_components: k.
        learning_rate: a number; a function of n, the number of accepted steps so far; or a list with one rate for each
            accepted step, whose last one stays after that.
        momentum: 0 <= momentum < 1.
    """

    def __init__(
        self, n_components: int, learning_rate: float | Sequence[float] | Callable[[int], float], momentum: float
    ):
        self.n_components = n_components
        self.rate = _schedule(learning_rate)
        self.momentum = momentum

    def initial(self) -> MomentumState:
        """Return a velocity of 0."""
        return MomentumState(np.zeros(self.n_components))

    def propose(self, state: MomentumState, subspace_grad: np.ndarray) -> Proposal:
        """Propose a direction, and the state with its new velocity; see ``Direction``."""
        velocity = self.momentum * state.velocity + subspace_grad
        direction = -self.rate(state.n_steps) * velocity
        return Proposal(direction, float(subspace_grad @ direction), MomentumState(velocity, state.n_steps + 1))

    def follow(self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float) -> MomentumState:
        """Return the state in the proposal, which does not depend on the step size."""
        state: MomentumState = proposal.state
        return state


def _schedule(learning_rate: float | Sequence[float] | Callable[[int], float]) -> Callable[[int], float]:
    """Make a function that returns the rate of a step, by its number from 0."""
    if callable(learning_rate):
        return learning_rate
    rates = np.atleast_1d(learning_rate)
    return lambda n_steps: float(rates[min(n_steps, len(rates) - 1)])
