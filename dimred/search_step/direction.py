"""Rules that choose a direction in the subspace: BFGS, which estimates the inverse Hessian there, and momentum SGD.

They compute with k-vectors and k x k matrices on the host, in float64; k is a few dozen, so this takes microseconds.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from dimred.errors import ConfigError, check_number

_LARGEST_CONDITION = 1e12  # for H scaled to a unit diagonal; float64 keeps it positive definite up to here
_SMALLEST_NORM = 1e-150  # for s and y, so that their squares don't underflow


class Proposal(NamedTuple):
    """A direction in the subspace, and the rule's state if the step along it is accepted.

    Attributes:
        direction: d_k, (k,) float64.
        slope: g_k' d_k.
        state: the rule's state, for ``follow`` once the step is accepted; discarded if it is not.
        is_scaled: whether the direction's length says how far to go. The length of a plain gradient does not, and a
            line search may have to shorten it by any factor.
        curvature: the product s'y of the pair that was considered; nan without one.
        pair_used: whether the pair changed the state.
        condition: condition number of the inverse Hessian; nan without one.
    """

    direction: np.ndarray
    slope: float
    state: Any
    is_scaled: bool = True
    curvature: float = math.nan
    pair_used: bool = False
    condition: float = math.nan


class Direction(Protocol):
    """A rule that chooses directions; ``SearchStep`` takes any object with these members.

    Its states are immutable named tuples of arrays and numbers. A rejected step keeps the state it began with, so
    nothing has to be undone.
    """

    def initial(self) -> Any:
        """Return the state before the first step."""

    def propose(self, state: Any, subspace_grad: np.ndarray) -> Proposal:
        """Propose a direction.

        Args:
            state: the state after the last accepted step.
            subspace_grad: g_k, (k,) float64.
        """

    def follow(self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float) -> Any:
        """Return the state after an accepted step.

        Args:
            proposal: the proposal that the step followed.
            subspace_grad: the g_k that the proposal was made from, (k,) float64.
            step_size: the accepted t.
        """


class CurvatureState(NamedTuple):
    """What BFGS remembers between steps.

    Attributes:
        inverse_hessian: H, (k, k) float64, symmetric positive definite.
        step_diff: s, the last accepted step t d_k, (k,); None before the first.
        start_grad: g_k where that step began, (k,); None before the first.
        n_pairs: number of pairs that H has taken.
    """

    inverse_hessian: np.ndarray
    step_diff: np.ndarray | None = None
    start_grad: np.ndarray | None = None
    n_pairs: int = 0


class InverseBFGS:
    """The BFGS rule: d_k = -H g_k, with H updated by each pair (s, y) that passes the guard.

    H <- (I - r s y') H (I - r y s') + r s s',  r = 1 / s'y   (Nocedal & Wright, Numerical Optimization, equation 6.17)

    where s is the last accepted step t d_k, and y is the change in g_k from that step's batch to the current one. A
    pair is ignored if it would raise the condition number of H, scaled to a diagonal of ones, above 1e12, because H
    might then not stay positive definite in float64. H begins as I, whose scale is arbitrary, so a direction is not
    scaled until H has taken a pair.

    Args:
        n_components: k.
        initial_scaling: whether H = (s'y / y'y) I before it takes its first pair (equation 6.20).
        min_cosine: the guard: a pair is used if s'y > min_cosine |s| |y|. One update multiplies H's largest eigenvalue
            by up to about 1 / min_cosine^2, and a noisy pair can come arbitrarily close to s'y = 0. On a quadratic with
            condition number c, s'y >= |s| |y| 2 sqrt(c) / (1 + c), so 0.01 refuses no true pair up to c = 39,000.
            If every gradient comes from the same batch, pairs have no noise, and 1e-8 is enough.
    """

    def __init__(self, n_components: int, initial_scaling: bool = False, min_cosine: float = 0.01):
        self.n_components = n_components
        self.initial_scaling = initial_scaling
        self.min_cosine = min_cosine

    def initial(self) -> CurvatureState:
        """Return H = I and no pair."""
        return CurvatureState(np.eye(self.n_components))

    def propose(self, state: CurvatureState, subspace_grad: np.ndarray) -> Proposal:
        """Update H with the pair that this gradient completes, and propose -H g_k; see ``Direction``."""
        curvature = math.nan
        pair_used = False
        if state.step_diff is not None and state.start_grad is not None:
            grad_diff = subspace_grad - state.start_grad
            curvature = float(grad_diff @ state.step_diff)
            if cosine(state.step_diff, grad_diff) > self.min_cosine:
                before = state.inverse_hessian
                if self.initial_scaling and state.n_pairs == 0:
                    before = initial_scale(state.step_diff, grad_diff) * before
                after = bfgs_update(before, state.step_diff, grad_diff)
                pair_used = scaled_condition_number(after) <= _LARGEST_CONDITION
                if pair_used:
                    state = state._replace(inverse_hessian=after, n_pairs=state.n_pairs + 1)
        direction = -state.inverse_hessian @ subspace_grad
        return Proposal(
            direction=direction,
            slope=float(subspace_grad @ direction),
            state=state,
            is_scaled=state.n_pairs > 0,
            curvature=curvature,
            pair_used=pair_used,
            condition=condition_number(state.inverse_hessian),
        )

    def follow(self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float) -> CurvatureState:
        """Return the state after an accepted step: t d_k becomes the next pair's s, and g_k the start of its y."""
        state: CurvatureState = proposal.state
        return state._replace(step_diff=step_size * proposal.direction, start_grad=subspace_grad)


def cosine(step_diff: np.ndarray, grad_diff: np.ndarray) -> float:
    """Return s'y / (|s| |y|) for s, y (k,); -1 if the pair is not finite, or too short to divide by its length."""
    grad_norm = float(np.linalg.norm(grad_diff))
    step_norm = float(np.linalg.norm(step_diff))
    if not (_SMALLEST_NORM < grad_norm < math.inf and _SMALLEST_NORM < step_norm < math.inf):
        return -1.0
    return float((grad_diff / grad_norm) @ (step_diff / step_norm))


def initial_scale(step_diff: np.ndarray, grad_diff: np.ndarray) -> float:
    """Return s'y / y'y for s, y (k,) (equation 6.20), an estimate of an eigenvalue of the inverse Hessian."""
    grad_norm = float(np.linalg.norm(grad_diff))
    return float((grad_diff / grad_norm) @ step_diff) / grad_norm


def bfgs_update(inverse_hessian: np.ndarray, step_diff: np.ndarray, grad_diff: np.ndarray) -> np.ndarray:
    """Update H with a pair (equation 6.17), expanded so that it costs two outer products.

    With the unit vectors u = s / |s| and v = y / |y|, and c = u'v::

        H + ((|s| / |y| + v'H v / c) / c) u u' - (H v u' + u v'H) / c

    Return the new H, (k, k), exactly symmetric. Short pairs don't underflow, because the lengths are divided out first.

    Args:
        inverse_hessian: H, (k, k) symmetric.
        step_diff: s, (k,).
        grad_diff: y, (k,), with s'y > 0.
    """
    step_norm = float(np.linalg.norm(step_diff))
    grad_norm = float(np.linalg.norm(grad_diff))
    step = step_diff / step_norm
    grad = grad_diff / grad_norm
    curvature = float(grad @ step)
    hessian_grad = inverse_hessian @ grad
    factor = (step_norm / grad_norm + float(grad @ hessian_grad) / curvature) / curvature
    cross = np.outer(hessian_grad, step) / curvature
    return inverse_hessian + factor * np.outer(step, step) - (cross + cross.T)


def condition_number(matrix: np.ndarray) -> float:
    """Compute the condition number of a symmetric matrix; infinity if it is not positive definite."""
    if not np.isfinite(matrix).all():
        return math.inf
    eigenvalues = np.linalg.eigvalsh(matrix)
    return float(eigenvalues[-1] / eigenvalues[0]) if eigenvalues[0] > 0 else math.inf


def scaled_condition_number(matrix: np.ndarray) -> float:
    """Compute the condition number of a symmetric matrix after scaling it to a diagonal of ones.

    It is infinity if the matrix is not positive definite.

    The units of the coordinates don't change it, and no other scaling lowers it by more than a factor k (van der
    Sluis, Condition numbers and equilibration of matrices, 1969). It says how far rounding is from making the matrix
    indefinite (Demmel and Veselić, Jacobi's method is more accurate than QR, 1992).
    """
    diagonal = np.diagonal(matrix)
    if not (np.isfinite(matrix).all() and (diagonal > 0).all()):
        return math.inf
    roots = np.sqrt(diagonal)
    return condition_number(matrix / np.outer(roots, roots))


class MomentumState(NamedTuple):
    """What projected SGD remembers between steps.

    Attributes:
        velocity: v, (k,) float64.
        n_steps: number of accepted steps so far; the schedule maps it to the next rate.
    """

    velocity: np.ndarray
    n_steps: int = 0


class ProjectedSGD:
    """The rule of momentum SGD: v <- momentum v + g_k;  d_k = -rate(n) v.

    (Li et al., Low Dimensional Trajectory Hypothesis is True, 2022, P-SGD; on a basis of raw snapshots this is
    trainable weight averaging, Li et al., Trainable Weight Averaging, 2023.)

    Args:
        n_components: k.
        learning_rate: a number; a function of n, the number of accepted steps so far; or a list with one rate per
            accepted step, whose last rate is kept from then on.
        momentum: 0 <= momentum < 1.

    Raises:
        ConfigError: a function fails for 0, or in any step returns something other than a number of at least 0.
    """

    def __init__(
        self, n_components: int, learning_rate: float | Sequence[float] | Callable[[int], float], momentum: float
    ):
        self.n_components = n_components
        self.rate = _schedule(learning_rate)
        self._check_rate()
        self.momentum = momentum

    def _check_rate(self) -> None:
        """Ask for the first rate, so that a function that gives none is refused before training starts."""
        try:
            self.rate(0)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                "learning_rate is a function that can't be used: for 0, the number of accepted steps so far, it "
                f"raises {type(error).__name__}: {error}"
            ) from error

    def initial(self) -> MomentumState:
        """Return a velocity of 0."""
        return MomentumState(np.zeros(self.n_components))

    def propose(self, state: MomentumState, subspace_grad: np.ndarray) -> Proposal:
        """Propose a direction, and the state with its new velocity; see ``Direction``."""
        velocity = self.momentum * state.velocity + subspace_grad
        direction = -self.rate(state.n_steps) * velocity
        return Proposal(direction, float(subspace_grad @ direction), MomentumState(velocity, state.n_steps + 1))

    def follow(self, proposal: Proposal, subspace_grad: np.ndarray, step_size: float) -> MomentumState:
        """Return the proposal's state; it does not depend on the step size."""
        state: MomentumState = proposal.state
        return state


def _schedule(learning_rate: float | Sequence[float] | Callable[[int], float]) -> Callable[[int], float]:
    """Return a function that maps a step's number, counted from 0, to its rate."""
    if callable(learning_rate):
        return partial(_rate_of, learning_rate)
    rates = np.atleast_1d(learning_rate)
    return lambda n_steps: float(rates[min(n_steps, len(rates) - 1)])


def _rate_of(function: Callable[[int], float], n_steps: int) -> float:
    """Return the rate that a user's function gives; ConfigError if it is not a number of at least 0."""
    rate = function(n_steps)
    check_number(f"learning_rate({n_steps})", rate, at_least=0)
    return float(rate)
