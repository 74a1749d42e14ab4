"""Choose among networks by a measured loss.

``choose`` is the rule. ``Choice`` measures candidates one by one, logs them, and records them.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dimred.averaging.windows import Window
from dimred.errors import FaultError
from dimred.run_files.metric import Measurement, Metric
from dimred.run_files.stage_two_result import ChoiceResult

_log = logging.getLogger(__name__)

_UNNAMED = Metric("metric")


class Candidate(NamedTuple):
    """A measured network.

    Attributes:
        name: its name in logs and results.
        effective_size: how many equally weighted snapshots it is worth; 1 for the weights of a single step.
        losses: loss of each held-out sample, (n,); or only their mean, (1,).
        metric: mean over the samples; None if it was not measured.
        error: standard error of the mean loss, given if the losses of the samples aren't known.
        source: where its weights are: a file, or a window of snapshots; None if the caller knows.
    """

    name: str
    effective_size: float
    losses: np.ndarray
    metric: float | None = None
    error: float | None = None
    source: Path | Window | None = None

    @property
    def loss(self) -> float:
        """Return the mean loss of the samples; infinity if it is not finite."""
        mean = float(np.mean(self.losses, dtype=np.float64))
        return mean if math.isfinite(mean) else math.inf

    @property
    def standard_error(self) -> float:
        """Return the standard error of the mean loss; 0 if it isn't known."""
        return standard_error(self.losses) if self.error is None else self.error


class Behind(NamedTuple):
    """The amount by which one candidate's loss exceeds another's.

    Attributes:
        loss: mean of the differences.
        standard_error: standard error of that mean.
    """

    loss: float
    standard_error: float


def behind(candidate: Candidate, other: Candidate) -> Behind:
    """Compare two candidates sample by sample, so that a sample's difficulty, which both share, cancels.

    d_i = candidate_i - other_i;   loss = mean(d);   standard_error = std(d) / sqrt(n), with n - 1 degrees of freedom

    Without losses of the same samples, the standard errors of the two means are combined in quadrature. The standard
    error is at least the rounding of the losses.
    """
    least = rounding(candidate, other)
    if len(candidate.losses) == len(other.losses) > 1:
        differences = candidate.losses.astype(np.float64) - other.losses
        return Behind(float(differences.mean()), max(standard_error(differences), least))
    error = math.hypot(candidate.standard_error, other.standard_error)
    return Behind(candidate.loss - other.loss, max(error, least))


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """Choose the candidate with the lowest loss; of equal losses, the largest effective size, then the first.

    Losses are equal if the mean of their differences is smaller than the rounding of both: the same network, measured
    twice in float32, may differ by the last digit of some samples. A network that is worse on every sample is never
    equal, however large the losses are, and single numbers, such as a user's scores, are equal only if they are the
    same. ``tests/studies/choice.md`` has the other rules that were compared, such as the largest average within one
    standard error of the lowest loss.

    Raises:
        FaultError: no loss is finite.
    """
    lowest = min(candidates, key=lambda candidate: candidate.loss)
    if not math.isfinite(lowest.loss):
        raise FaultError("no candidate has a finite loss on the held-out samples; check the samples and the weights")
    equal = [candidate for candidate in candidates if behind(candidate, lowest).loss < rounding(candidate, lowest)]
    return max(equal, key=lambda candidate: candidate.effective_size)


def rounding(candidate: Candidate, other: Candidate) -> float:
    """Return the mean gap between a loss and the next floating-point number; NaN if a loss is not finite.

    Each sample's gap is taken at the smaller of its two losses, so losses that differ are at least that far apart.
    """
    distances = np.minimum(np.spacing(np.abs(candidate.losses)), np.spacing(np.abs(other.losses)))
    return float(distances.mean(dtype=np.float64))


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of the mean of ``values``, (n,); 0 for a single one."""
    with np.errstate(invalid="ignore"):  # a loss may not be finite
        return float(values.astype(np.float64).std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


class Choice:
    """The candidates for one choice by the loss on ``val``.

    Args:
        passes_each: cost of one measurement, in forward passes over the training split; 0 if unknown.
        metric: the metric, for the log.

    Attributes:
        candidates: in the order in which they were measured.
        n_added: how many of them were measured for another choice.
        seconds: time spent on measuring.
    """

    def __init__(self, *, passes_each: float = 0.0, metric: Metric = _UNNAMED) -> None:
        self.candidates: list[Candidate] = []
        self.n_added = 0
        self.seconds = 0.0
        self._passes_each = passes_each
        self._metric = metric

    def measure(
        self, name: str, effective_size: float, measure: Callable[[], Measurement], source: Path | Window | None = None
    ) -> Candidate:
        """Measure a network, add it as a candidate, and return the candidate.

        Args:
            name, effective_size, source: as in ``Candidate``.
            measure: measures the network on ``val``; called once.
        """
        _log.debug(f"measuring on 'val': {name}, candidate {len(self.candidates) + 1}")
        start = time.perf_counter()
        self.candidates.append(Candidate(name, effective_size, *measure(), source=source))
        self.seconds += time.perf_counter() - start
        return self.candidates[-1]

    def add(self, name: str, candidate: Candidate, source: Path) -> None:
        """Add a candidate that another choice has measured.

        Args:
            name: its name in this choice.
            candidate: the candidate.
            source: the file that its weights were written to.
        """
        self.candidates.append(candidate._replace(name=name, source=source))
        self.n_added += 1

    @property
    def n_measured(self) -> int:
        """Return the number of networks measured here."""
        return len(self.candidates) - self.n_added

    @property
    def forward_passes(self) -> float:
        """Return the cost of measuring these networks, in forward passes over the training split."""
        return self.n_measured * self._passes_each

    def result(self) -> ChoiceResult:
        """Return the choice as ``result.json`` has it: all candidates, how far each is behind the best, and the cost.

        Raises:
            FaultError: no loss is finite.
        """
        best = choose(self.candidates)
        records = [
            {
                "name": candidate.name,
                "effective_size": candidate.effective_size,
                "loss": candidate.loss,
                "metric": candidate.metric,
            }
            | dict(zip(("behind", "standard_error"), behind(candidate, best), strict=True))
            for candidate in self.candidates
        ]
        return ChoiceResult(best.name, best.effective_size, records, self.n_measured, self.forward_passes, self.seconds)

    def log_choice(self, title: str) -> None:
        """Log which candidate is chosen, and by how much it is better than the next.

        The next counts as equally good if it is behind by less than two standard errors.

        Args:
            title: what the line calls the chosen network; the line begins with it.

        Raises:
            FaultError: no loss is finite.
        """
        best = choose(self.candidates)
        finite = [candidate for candidate in self.candidates if math.isfinite(candidate.loss)]
        lost = [in_words(candidate.name) for candidate in self.candidates if not math.isfinite(candidate.loss)]
        text = (
            f"{title}: {in_words(best.name)}, with the lowest loss on 'val', {best.loss:.4f}{self._in_brackets(best)}"
        )
        if others := [candidate for candidate in finite if candidate is not best]:
            following = min(others, key=lambda candidate: candidate.loss)
            gap = behind(following, best)
            verdict = "" if gap.loss > 2 * gap.standard_error else ", too little to tell the two apart"
            text += f"; the next of {len(finite)}, {in_words(following.name)}, has {gap.loss:.4f} more"
            text += f"{self._in_brackets(following)}{verdict}"
        _log.info(text)
        if lost:
            _log.warning(f"of {len(self.candidates)} networks, {len(lost)} have no finite loss: {', '.join(lost)}")

    def _in_brackets(self, candidate: Candidate) -> str:
        return "" if candidate.metric is None else f" ({self._metric.name} {self._metric.text(candidate.metric)})"


def in_words(name: str) -> str:
    """Describe a candidate or a point of stage 2 for readers; return an unknown name as it is.

    Args:
        name: ``start``, the number of an epoch, ``average``, ``final``, ``last`` or ``mean``.
    """
    words = {
        "start": "stage 2's start",
        "average": "the best average of the snapshots",
        "last": "the last weights of stage 1",
        "mean": "the mean of the snapshots",
        "final": "stage 2's last weights",
    }
    return f"epoch {name}" if name.isdecimal() else words.get(name, name)
