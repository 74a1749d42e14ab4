"""Direction rules: the interface, and the proposal that each of them makes."""

import math
from typing import Any, NamedTuple, Protocol

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


class DirectionRule(Protocol):
    """A rule for directions in the k coordinates.

    States are immutable: a rejected step keeps the old one, so nothing has to be undone.
    """

    def initial(self) -> Any:
        """Return the state before the first step, a ``NamedTuple``."""

    def propose(self, state: Any, subspace_grad: np.ndarray) -> Proposal:
        """Propose a direction at the gradient g_k, (k,)."""

    def follow(self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float) -> Any:
        """Return the state after the accepted step t d_k."""
