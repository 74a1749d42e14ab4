"""Direction rules: the proposal that each of them makes, and momentum SGD in the subspace.

A rule has ``initial() -> state``, ``propose(state, subspace_grad) -> Proposal``, and ``follow``, which gives the state
after an accepted step. States are immutable: a rejected step keeps the old one, so nothing has to be undone.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Proposal(NamedTuple):
    """A direction in the subspace, and the rule's state if it is followed.

    Attributes:
        direction: d_k, (k,) float64.
        slope: g_k' d_k.
        state: the rule's state, to be handed to ``follow`` once the step is accepted; dropped where it is not.
        curvature: y's of the pair considered; nan without one.
        pair_used: whether the pair changed the state.
        condition: condition number of the inverse Hessian; nan without one.
    """

    direction: np.ndarray
    slope: float
    state: Any
    curvature: float = math.nan
    pair_used: bool = False
    condition: float = math.nan


class MomentumState(NamedTuple):
    """The memory of projected SGD between steps.

    Attributes:
        velocity: v, (k,) float64.
        n_steps: accepted steps so far; the schedule's argument.
    """

    velocity: np.ndarray
    n_steps: int = 0


class ProjectedSGD:
    """Momentum SGD: v <- momentum v + g_k;  d_k = -rate(n) v.

    (Li et al., Low Dimensional Trajectory Hypothesis is True, 2022, P-SGD; on a basis of raw snapshots this is
    trainable weight averaging, Li et al., Trainable Weight Averaging, 2023.)

    Args:
        n_components: k.
        learning_rate: a number; a function of n, the number of accepted steps so far; or one rate for each step, of
            which the last stays once they are used up.
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
        """Propose a direction, and the state with its new velocity."""
        grad = np.asarray(subspace_grad, dtype=np.float64)
        velocity = self.momentum * state.velocity + grad
        direction = -self.rate(state.n_steps) * velocity
        return Proposal(direction, float(grad @ direction), MomentumState(velocity, state.n_steps + 1))

    def follow(self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float) -> MomentumState:
        """Return the proposed state; the step's length is the schedule's."""
        state: MomentumState = proposal.state
        return state


def _schedule(learning_rate: float | Sequence[float] | Callable[[int], float]) -> Callable[[int], float]:
    """Make a function of the step's number, from 0, that returns its rate."""
    if callable(learning_rate):
        return learning_rate
    rates = np.atleast_1d(learning_rate)
    return lambda n_steps: float(rates[min(n_steps, len(rates) - 1)])
