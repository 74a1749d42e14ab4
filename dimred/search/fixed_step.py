"""How far, without looking: the step that a schedule gives."""

import math
from collections.abc import Callable

from dimred.search.armijo import LineSearchResult


class FixedStep:
    """Take t = 1 whatever the loss becomes; the direction carries its own learning rate.

    One trial is evaluated all the same, one forward pass: a step onto a loss that is not finite would leave weights
    from which no later step has a finite gradient, and nothing could bring them back. It also fills in the loss after
    the step.
    """

    def search(self, loss_at: Callable[[float], float], loss: float, slope: float) -> LineSearchResult:
        """See ``ArmijoBacktracking.search``; ``slope`` is not used."""
        trial_loss = loss_at(1.0)
        if math.isfinite(trial_loss):
            return LineSearchResult(True, 1.0, trial_loss, 1)
        return LineSearchResult(False, 0.0, loss, 1)
