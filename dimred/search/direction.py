"""Which way: what every direction rule hands to the step, and a bound on the direction's length."""

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from dimred.errors import ConfigError
from dimred.search.basis_check import Basis


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
    """States are immutable: a rejected step keeps the old one, so nothing has to be undone.

    Attributes:
        wants_end_gradient: whether ``follow`` needs the same batch's gradient at the end of the step.
    """

    wants_end_gradient: bool

    def initial(self) -> Any:
        """The state before the first step, a ``NamedTuple``."""

    def propose(self, state: Any, subspace_grad: np.ndarray) -> Proposal:
        """The direction at this gradient g_k, (k,)."""

    def follow(
        self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float, end_grad: np.ndarray | None
    ) -> Any:
        """The state after the accepted step t d_k; ``end_grad`` is g_k at its end, where that is wanted."""


class NoState(NamedTuple):
    """Nothing is remembered."""


class NoDirection:
    """The subspace has no dimension: every proposal has the length and the slope 0, so no trial is made."""

    wants_end_gradient = False

    def initial(self) -> NoState:
        """Nothing."""
        return NoState()

    def propose(self, state: NoState, subspace_grad: np.ndarray) -> Proposal:
        """A direction (0,)."""
        return Proposal(np.zeros(0), 0.0, state)

    def follow(
        self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float, end_grad: np.ndarray | None
    ) -> NoState:
        """Nothing: no step is accepted."""
        return NoState()


class BoundedDirection:
    """d_k <- d_k min(1, max_step / |d_k|), around another rule.

    The rows of the basis are orthonormal, so |d_k| is also the distance |P' d_k| in weight space.

    Args:
        rule: gives the direction.
        max_step: longest direction, in weight-space distance, above 0.
    """

    def __init__(self, rule: DirectionRule, max_step: float):
        self.rule = rule
        self.max_step = max_step
        self.wants_end_gradient = rule.wants_end_gradient
        self.initial = rule.initial
        self.follow = rule.follow  # it learns the shortened step

    def propose(self, state: Any, subspace_grad: np.ndarray) -> Proposal:
        """The rule's proposal, shortened."""
        proposal = self.rule.propose(state, subspace_grad)
        length = float(np.linalg.norm(proposal.direction))
        if length <= self.max_step:
            return proposal
        factor = self.max_step / length
        return proposal._replace(direction=factor * proposal.direction, slope=factor * proposal.slope)


def bounded(rule: DirectionRule, max_step: float | str | None, basis: Basis | None, n_components: int) -> DirectionRule:
    """The rule within a bound; the rule itself where there is none.

    Args:
        rule: gives the direction.
        max_step: a distance; ``trajectory`` for the snapshots' root mean square distance from their mean within the
            leading components, sqrt(sum of explained variances); None for no bound.
        basis: asked for its explained variance by ``trajectory``.
        n_components: k; no direction of 0 components has a length.

    Raises:
        ConfigError: ``trajectory``, but the basis does not know its explained variance.
    """
    if max_step is None or basis is None or n_components == 0:
        return rule
    if not isinstance(max_step, str):
        return BoundedDirection(rule, max_step)
    if basis.explained_variance is None:
        raise ConfigError(
            "max_step is 'trajectory', but the basis does not say how far the snapshots lie apart (no pca_mat.h5 "
            "beside it); give a distance, or None for no bound"
        )
    return BoundedDirection(rule, math.sqrt(float(np.sum(basis.explained_variance[:n_components]))))
