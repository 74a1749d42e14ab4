"""Notice a training that diverges, before it costs days."""

import math
from typing import Any

from dimred.errors import FaultError

__all__ = ["DivergenceDetector"]

_STEPS = 10  # losses looked at together; a few overflows in a row are what a dynamic loss scale feels its way with
_FACTOR = 100.0  # of the first loss


class DivergenceDetector:
    """Looks at each ten losses: none of them finite, or each a hundred times the first one, is no training any more.

    Args:
        first_loss: of the run, where it goes on; None where it begins.
    """

    def __init__(self, first_loss: float | None = None):
        self.first_loss = first_loss
        self._recent: list[Any] = []

    def see(self, loss: Any, step: int) -> None:
        """Take up the loss of a step, a Tensor () or a number.

        Raises:
            FaultError: the training diverged; says how.
        """
        self._recent.append(loss)
        if len(self._recent) < _STEPS:
            return
        losses = [float(value) for value in self._recent]
        self._recent.clear()
        finite = [value for value in losses if math.isfinite(value)]
        if not finite:
            raise FaultError(f"none of the {_STEPS} losses up to step {step} was a finite number")
        if self.first_loss is None:
            self.first_loss = finite[0]
        if min(losses, key=abs) > _FACTOR * max(abs(self.first_loss), 1.0):
            raise FaultError(
                f"the loss exploded: {finite[-1]:.4g} at step {step}, and no less than {min(finite):.4g} in the "
                f"{_STEPS} steps before, where the first was {self.first_loss:.4g}"
            )
