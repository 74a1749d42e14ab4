"""Line searches, which find the length of a step along a direction."""

import math
from itertools import count
from typing import NamedTuple, Protocol


class LineFunction(Protocol):
    """The loss of a batch along a line, phi(t) = f(w + t d; B), as a line search sees it.

    It counts the passes that it makes, so a search may ask for as many values as it needs. phi(0) and phi'(0) are
    known, and no value is computed twice.

    Attributes:
        is_scaled: whether the direction's length says how far to go; see ``Proposal``.
    """

    is_scaled: bool

    def loss(self, step_size: float) -> float:
        """Return phi(t); this takes a forward pass."""

    def slope(self, step_size: float) -> float:
        """Return phi'(t); this takes a forward and a backward pass, and phi(t) is known afterwards."""

    def moves(self, step_size: float) -> bool:
        """Return whether w + t d differs from w in the weights' precision."""


class LineSearchResult(NamedTuple):
    """The outcome of a line search.

    Attributes:
        accepted: whether a trial was accepted.
        step_size: the accepted t; 0.0 if none was accepted.
        loss: the loss at the accepted trial; if none was accepted, the loss at t = 0.
    """

    accepted: bool
    step_size: float
    loss: float


class LineSearch(Protocol):
    """A line search; ``SearchStep`` takes any object with this method."""

    def search(self, line: LineFunction) -> LineSearchResult:
        """Look for a step size along a line."""


class ArmijoBacktracking:
    """A backtracking search: it accepts the first t = rho^j, j = 0, 1, ..., with phi(t) < phi(0) + sigma t phi'(0).

    Armijo (1966); Nocedal & Wright, Numerical Optimization, algorithm 3.1. A trial whose loss is not finite is
    rejected; no trial is made unless the slope is finite and negative. Along a direction that is not scaled, trials
    have no cap: the search continues until the weights stop changing.

    Args:
        rho: factor by which a rejected step shrinks, 0 < rho < 1.
        sigma: fraction of the slope that the decrease must reach, 0 < sigma < 1.
        max_trials: the search gives up after this many trials, at least 1.
    """

    def __init__(self, rho: float, sigma: float, max_trials: int):
        self.rho = rho
        self.sigma = sigma
        self.max_trials = max_trials

    def search(self, line: LineFunction) -> LineSearchResult:
        """Try t = 1, then smaller ones, until a trial is accepted."""
        loss = line.loss(0.0)
        slope = line.slope(0.0)
        if not -math.inf < slope < 0:
            return LineSearchResult(False, 0.0, loss)
        for trial in count():
            step_size = self.rho**trial
            if trial >= self.max_trials and (line.is_scaled or not line.moves(step_size)):
                break
            trial_loss = line.loss(step_size)
            if math.isfinite(trial_loss) and trial_loss < loss + self.sigma * step_size * slope:
                return LineSearchResult(True, step_size, trial_loss)
        return LineSearchResult(False, 0.0, loss)


class FixedStep:
    """A search that takes t = 1 at any finite loss; the direction carries its own learning rate.

    The trial costs a forward pass. It is needed because weights whose loss is not finite have no finite gradient, so
    no later step could bring them back.
    """

    def search(self, line: LineFunction) -> LineSearchResult:
        """Take t = 1 if the loss there is finite."""
        trial_loss = line.loss(1.0)
        if math.isfinite(trial_loss):
            return LineSearchResult(True, 1.0, trial_loss)
        return LineSearchResult(False, 0.0, line.loss(0.0))
