"""Which way: momentum SGD in the subspace, with a schedule."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dimred.errors import ConfigError
from dimred.search.direction import Proposal


class MomentumState(NamedTuple):
    """What projected SGD remembers between steps.

    Attributes:
        velocity: v, (k,) float64.
        n_steps: accepted steps so far; the schedule's argument.
    """

    velocity: np.ndarray
    n_steps: int = 0


class ProjectedSGD:
    """v <- momentum v + g_k;  d_k = -learning_rate(n) v   (Li et al., DLDR, 2022; on a basis of raw snapshots this is trainable weight averaging, Li et al., TWA, 2023).

    Args:
        n_components: k.
        learning_rate: a number, or a function of the number of accepted steps.
        momentum: 0 <= momentum < 1.

    Raises:
        ConfigError: a value outside its range.
    """

    wants_end_gradient = False

    def __init__(self, n_components: int, learning_rate: float | Callable[[int], float] = 0.1, momentum: float = 0.9):
        if not callable(learning_rate) and learning_rate <= 0:
            raise ConfigError(f"learning_rate is {learning_rate}; it must be above 0")
        if not 0 <= momentum < 1:
            raise ConfigError(f"momentum is {momentum}; it must be at least 0 and below 1")
        self.n_components = n_components
        self.learning_rate = learning_rate
        self.momentum = momentum

    def initial(self) -> MomentumState:
        """No velocity."""
        return MomentumState(np.zeros(self.n_components))

    def propose(self, state: MomentumState, subspace_grad: np.ndarray) -> Proposal:
        """The direction, and the state with its new velocity."""
        grad = np.asarray(subspace_grad, dtype=np.float64)
        velocity = self.momentum * state.velocity + grad
        rate = self.learning_rate(state.n_steps) if callable(self.learning_rate) else self.learning_rate
        direction = -rate * velocity
        return Proposal(direction, float(grad @ direction), MomentumState(velocity, state.n_steps + 1))

    def follow(
        self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float, end_grad: np.ndarray | None
    ) -> MomentumState:
        """The proposed state; the step's length is the schedule's."""
        state: MomentumState = proposal.state
        return state
