"""The rule for every choice between networks by a measured loss."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dimred.errors import FaultError

_RESOLUTION = 1e-6  # of a loss in float32, whose kernels may sum in another order each time


class Candidate(NamedTuple):
    """A network that was measured.

    Attributes:
        name: for a reader.
        effective_size: how many equal snapshots it is worth; 1 for weights as a step left them.
        losses: on each held-out sample, (n,); or only their mean, (1,).
        metric: mean over the samples; None where it was not measured.
        error: standard error of the mean loss, where the samples aren't known.
    """

    name: str
    effective_size: float
    losses: np.ndarray
    metric: float | None = None
    error: float | None = None

    @property
    def loss(self) -> float:
        """The mean over the samples; infinite where it is not a number."""
        mean = float(np.mean(self.losses, dtype=np.float64))
        return mean if math.isfinite(mean) else math.inf

    @property
    def standard_error(self) -> float:
        """Of that mean; 0 where it isn't known."""
        return standard_error(self.losses) if self.error is None else self.error


class Behind(NamedTuple):
    """How much higher the loss of one candidate is than that of another.

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

    Without losses of the same samples, the standard errors of the two means are added in squares. The standard error is
    at least a millionth of the loss: a float32 network may be that far off itself.
    """
    least = _RESOLUTION * abs(other.loss)
    if len(candidate.losses) == len(other.losses) > 1:
        differences = candidate.losses.astype(np.float64) - other.losses
        return Behind(float(differences.mean()), max(standard_error(differences), least))
    error = math.hypot(candidate.standard_error, other.standard_error)
    return Behind(candidate.loss - other.loss, max(error, least))


def lowest(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the lowest loss, of equal ones the first.

    Raises:
        FaultError: no loss is finite.
    """
    found = min(candidates, key=lambda candidate: candidate.loss)
    if not math.isfinite(found.loss):
        raise FaultError("no candidate has a finite loss on 'val'; look at the images there, and at the last weights")
    return found


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """Choose by the one rule: the largest effective size within one standard error of the lowest loss.

    The largest average removes most of the noise that the held-out samples are too few to show. Of equally large ones
    the lower loss is taken.

    Raises:
        FaultError: no loss is finite.
    """
    best = lowest(candidates)
    near = [one for one in candidates if behind(one, best).is_noise]
    return min(near, key=lambda candidate: (-candidate.effective_size, candidate.loss))


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of the mean of ``values``, (n,); 0 for a single one."""
    with np.errstate(invalid="ignore"):  # of a loss that is not finite
        return float(values.astype(np.float64).std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
