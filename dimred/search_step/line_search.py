"""Line searches, which find the length of a step along a direction."""

import math
from collections.abc import Callable
from typing import NamedTuple


class LineSearchResult(NamedTuple):
    """The outcome of a line search.

    Attributes:
        accepted: whether a trial was accepted.
        step_size: the accepted t, or 0.0 without one.
        loss: loss at the accepted trial; without one, the loss at t = 0.
        n_trials: number of trial losses evaluated.
    """

    accepted: bool
    step_size: float
    loss: float
    n_trials: int


class ArmijoBacktracking:
    """A backtracking search: it accepts the first t = rho^j, j = 0, 1, ..., with f(w + t d) < f(w) + sigma t slope.

    Armijo (1966); Nocedal & Wright, Numerical Optimization, algorithm 3.1. A trial whose loss is not finite is
    rejected; no trial is made unless the slope is finite and negative.

    Args:
        rho: factor by which a rejected step shrinks, 0 < rho < 1.
        sigma: share of the slope that the decrease must reach, 0 < sigma < 1.
        max_trials: number of trials after which the search gives up, at least 1.
    """

    def __init__(self, rho: float, sigma: float, max_trials: int):
        self.rho = rho
        self.sigma = sigma
        self.max_trials = max_trials

    def search(self, loss_at: Callable[[float], float], loss: float, slope: float) -> LineSearchResult:
        """Try t = 1, then smaller ones, until a trial is accepted.

        Args:
            loss_at: t -> f(w + t d; B), on the batch that gave ``loss``.
            loss: f(w; B).
            slope: directional derivative at t = 0; negative on a descent direction.
        """
        if not -math.inf < slope < 0:
            return LineSearchResult(False, 0.0, loss, 0)
        for trial in range(self.max_trials):
            step_size = self.rho**trial
            trial_loss = loss_at(step_size)
            if math.isfinite(trial_loss) and trial_loss < loss + self.sigma * step_size * slope:
                return LineSearchResult(True, step_size, trial_loss, trial + 1)
        return LineSearchResult(False, 0.0, loss, self.max_trials)


class FixedStep:
    """A search that takes t = 1 at any finite loss; the direction carries its own learning rate.

    The trial costs a forward pass. It is needed because weights with a loss that is not finite have no finite gradient
    either, so no later step could bring them back.
    """

    def search(self, loss_at: Callable[[float], float], loss: float, slope: float) -> LineSearchResult:
        """Take t = 1 if the loss there is finite; ignore ``slope``."""
        trial_loss = loss_at(1.0)
        if math.isfinite(trial_loss):
            return LineSearchResult(True, 1.0, trial_loss, 1)
        return LineSearchResult(False, 0.0, loss, 1)
