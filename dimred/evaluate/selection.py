"""One rule for every choice between weights by their loss on ``val``."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dimred.console import doing, say
from dimred.errors import FaultError

_TOLD = 5  # candidates in the log
_RESOLUTION = 1e-6  # of a loss in float32, whose kernels may sum in another order each time


class Candidate(NamedTuple):
    """Weights that were measured.

    Attributes:
        name: what a reader is told.
        width: how many points they are the mean of; 1 for weights as a step left them.
        losses: on each sample of ``val``, (n,).
    """

    name: str
    width: float
    losses: np.ndarray

    @property
    def loss(self) -> float:
        """The mean over the samples; infinite where it is not a number."""
        mean = float(np.mean(self.losses, dtype=np.float64))
        return mean if math.isfinite(mean) else math.inf

    @property
    def standard_error(self) -> float:
        """Of that mean."""
        return _standard_error(self.losses.astype(np.float64))


class Behind(NamedTuple):
    """How much higher the loss of one candidate is than that of another, on the same samples.

    Attributes:
        loss: mean of the differences.
        standard_error: of that mean.
    """

    loss: float
    standard_error: float

    @property
    def is_noise(self) -> bool:
        """Whether it is no more than one standard error; never of a loss that is not finite."""
        return self.loss <= self.standard_error


def behind(candidate: Candidate, other: Candidate) -> Behind:
    """Compare two candidates sample by sample, so that what makes a sample hard for both cancels.

    d_i = candidate_i - other_i;   loss = mean(d);   standard_error = std(d) / sqrt(n), with n - 1 degrees of freedom

    The standard error is at least a millionth of the loss: a float32 network may be that far off itself.
    """
    differences = candidate.losses.astype(np.float64) - other.losses
    return Behind(float(differences.mean()), max(_standard_error(differences), _RESOLUTION * abs(other.loss)))


def _standard_error(values: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):  # of a loss that is not finite
        return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


class Selection:
    """Candidates and the choice between them.

    The rule: take the lowest loss on ``val``; of all that are behind it by no more than one standard error of the
    paired difference, take the widest, because it averages away most of the noise that ``val`` is too small to show.

    Args:
        reestimates: whether a measurement re-estimates BatchNorm first; for what is told of the cost.

    Attributes:
        candidates: in the order in which they were measured.
        seconds: that measuring took.
    """

    def __init__(self, *, reestimates: bool = True) -> None:
        self.candidates: list[Candidate] = []
        self.seconds = 0.0
        self._reestimates = reestimates

    def measure(self, name: str, width: float, measure: Callable[..., np.ndarray], *weights: Any) -> Candidate:
        """Add a candidate with the losses (n,) that ``measure(*weights)`` finds."""
        doing(f"measuring on 'val': {name}, candidate {len(self.candidates) + 1}")
        started = time.perf_counter()
        self.candidates.append(Candidate(name, width, measure(*weights)))
        self.seconds += time.perf_counter() - started
        return self.candidates[-1]

    def lowest(self) -> Candidate:
        """The lowest loss, of equal ones the first.

        Raises:
            FaultError: no loss is finite.
        """
        found = min(self.candidates, key=lambda candidate: candidate.loss)
        if not math.isfinite(found.loss):
            raise FaultError(
                "no candidate has a finite loss on 'val'; look at the images there, and at the last weights"
            )
        return found

    def choose(self) -> Candidate:
        """The widest of those within one standard error of the lowest loss; of equally wide ones the lower loss."""
        lowest = self.lowest()
        near = [one for one in self.candidates if behind(one, lowest).is_noise]
        return min(near, key=lambda candidate: (-candidate.width, candidate.loss))

    def records(self) -> list[dict[str, Any]]:
        """Name, width, loss, and how far behind the lowest with its standard error, of each candidate."""
        lowest = self.lowest()
        return [
            {"name": one.name, "width": one.width, "loss": one.loss}
            | dict(zip(("behind", "standard_error"), behind(one, lowest), strict=True))
            for one in self.candidates
        ]

    def summary(self, what: str) -> dict[str, Any]:
        """What ``result.json`` holds of a choice: all candidates, and what measuring them cost."""
        return {f"{what}_candidates": self.records(), f"{what}_cost": self._cost(), f"{what}_seconds": self.seconds}

    def tell(self, what: str) -> None:
        """Say what was chosen, by which rule, among which candidates, and what that cost."""
        chosen = self.choose().name
        say(f"{what}: {_told(chosen)}, the widest within one standard error of the lowest loss on 'val'")
        for place, record in enumerate(sorted(self.records(), key=lambda record: record["loss"])):
            if place < _TOLD or record["name"] == chosen:
                error = f"{record['behind']:.4f} +- {record['standard_error']:.4f} behind"
                say(f"  {_told(record['name'])}: loss {record['loss']:.4f}, {error}, width {record['width']:.3g}")
        n, reestimations = self._cost().values()
        again = f", {reestimations} re-estimations of BatchNorm" if reestimations else ""
        say(f"  {n} passes over 'val'{again}, {self.seconds:.1f} s")

    def _cost(self) -> dict[str, int]:
        n = len(self.candidates)
        return {"val_passes": n, "reestimations": n if self._reestimates else 0}


def _told(name: str) -> str:
    """A candidate for a reader; the points of a search have the numbers of their epochs as names."""
    return f"epoch {name}" if name.isdecimal() else name
