"""Which way: what every direction rule hands to the step."""

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
    curvature: float = float("nan")
    pair_used: bool = False
    condition: float = float("nan")


class DirectionRule(Protocol):
    """States are immutable: a rejected step keeps the old one, so nothing has to be undone."""

    wants_end_gradient: bool

    def initial(self) -> Any:
        """The state before the first step."""

    def propose(self, state: Any, subspace_grad: np.ndarray) -> Proposal:
        """The direction at this gradient g_k, (k,)."""

    def follow(
        self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float, end_grad: np.ndarray | None
    ) -> Any:
        """The state after the accepted step t d_k; ``end_grad`` is the same batch's gradient there, where asked for."""
