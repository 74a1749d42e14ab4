"""Which way: momentum SGD in the subspace, with a schedule."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dimred.errors import ConfigError, check_number
from dimred.search.direction import Proposal

LearningRate = float | Sequence[float] | np.ndarray | Callable[[int], float]


class MomentumState(NamedTuple):
    """What projected SGD remembers between steps.

    Attributes:
        velocity: v, (k,) float64.
        n_steps: accepted steps so far; the schedule's argument.
    """

    velocity: np.ndarray
    n_steps: int = 0


class ProjectedSGD:
    """v <- momentum v + g_k;  d_k = -rate(n) v

    (Li et al., Low Dimensional Trajectory Hypothesis is True, 2022, P-SGD; on a basis of raw snapshots this is
    trainable weight averaging, Li et al., Trainable Weight Averaging, 2023.)

    Args:
        n_components: k.
        learning_rate: a number above 0; a function of n, the number of accepted steps so far; or one rate for each step
            (at least 0), of which the last stays once they are used up.
        momentum: 0 <= momentum < 1.

    Raises:
        ConfigError: a value outside its range.
    """

    wants_end_gradient = False

    def __init__(self, n_components: int, learning_rate: LearningRate = 0.1, momentum: float = 0.9):
        check_number("momentum", momentum, at_least=0, below=1, usual="0.9 is usual")
        self.n_components = n_components
        self.rate = _schedule(learning_rate)
        self.momentum = momentum

    def initial(self) -> MomentumState:
        """No velocity."""
        return MomentumState(np.zeros(self.n_components))

    def propose(self, state: MomentumState, subspace_grad: np.ndarray) -> Proposal:
        """The direction, and the state with its new velocity."""
        grad = np.asarray(subspace_grad, dtype=np.float64)
        velocity = self.momentum * state.velocity + grad
        direction = -self.rate(state.n_steps) * velocity
        return Proposal(direction, float(grad @ direction), MomentumState(velocity, state.n_steps + 1))

    def follow(
        self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float, end_grad: np.ndarray | None
    ) -> MomentumState:
        """The proposed state; the step's length is the schedule's."""
        state: MomentumState = proposal.state
        return state


def _schedule(learning_rate: LearningRate) -> Callable[[int], float]:
    """Number of the step, from 0 -> its rate."""
    if callable(learning_rate):
        return learning_rate
    if isinstance(learning_rate, Sequence | np.ndarray) and not isinstance(learning_rate, str):
        for rate in learning_rate:
            check_number("learning_rate", rate, at_least=0)
        rates = [float(rate) for rate in learning_rate]
        if not rates:
            raise ConfigError("learning_rate is an empty schedule; it needs at least one rate")
        return lambda n_steps: rates[min(n_steps, len(rates) - 1)]
    check_number("learning_rate", learning_rate, above=0, usual="0.1 is usual")
    return lambda n_steps: learning_rate
