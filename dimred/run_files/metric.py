"""``Metric`` names a metric, formats its values, and says whether higher is better; ``Measurement`` holds values."""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MANY_CLASSES = 100  # with this many or more, the built-in metrics include ``TOP5``

# The kinds of a figure: with BatchNorm's statistics as trained, with re-estimated ones, and with the EMA's weights.
AS_TRAINED = "as_trained"
REESTIMATED = "reestimated"
EMA = "ema"

Figures = dict[str, dict[str, float]]
"""Name of a metric -> kind of figure -> value."""


@dataclass(frozen=True)
class Metric:
    """A metric that is reported.

    Attributes:
        name: its name in results and logs.
        is_fraction: whether it lies between 0 and 1, and is shown in percent.
        higher_is_better: whether a higher value is better; None if that is not known, as for a user's own.
    """

    name: str
    is_fraction: bool = False
    higher_is_better: bool | None = None

    def text(self, value: float | None, decimals: int = 2) -> str:
        """Format a value: a fraction in percent with ``decimals`` decimals, any other with four significant digits.

        None, which stands for a value that is not finite, becomes "nan".
        """
        if value is None:
            return "nan"
        return f"{100 * value:.{decimals}f} %" if self.is_fraction else f"{value:.4g}"

    @property
    def axis(self) -> tuple[str, float]:
        """Return the label of an axis in a picture, and the factor by which values are multiplied there."""
        return (f"{self.name}, %", 100.0) if self.is_fraction else (self.name, 1.0)


class Measurement(NamedTuple):
    """Loss and metric of one network on ``val``.

    Attributes:
        losses: loss of each sample, (n,).
        metric: mean over the split; None if only the losses were asked for.
    """

    losses: np.ndarray
    metric: float | None = None


ACCURACY = Metric("accuracy", is_fraction=True, higher_is_better=True)
TOP5 = Metric("top5", is_fraction=True, higher_is_better=True)
"""The fraction of the samples whose label is among the five classes with the highest logits."""


def metrics_of(own: str | None, n_classes: int) -> tuple[Metric, ...]:
    """Return the metrics that are reported, the main one first.

    Args:
        own: the factory of a user's own metric, ``package.module:factory``; the last part becomes the metric's name.
            None for the built-in ones.
        n_classes: number of classes; with 100 or more, ``TOP5`` is reported beside ``ACCURACY``.
    """
    if own is not None:
        return (Metric(re.split("[:.]", own)[-1]),)
    return (ACCURACY, TOP5) if n_classes >= MANY_CLASSES else (ACCURACY,)
