"""The candidates of a choice by their loss on ``val``: measured one by one, told in the log, and recorded."""

import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from dimred.averaging.choice import Candidate, behind, choose, lowest
from dimred.io.metrics_file import metric_text

_log = logging.getLogger(__name__)

_TOLD = 5  # candidates in the log


class Measured(NamedTuple):
    """Loss and metric of one network on ``val``.

    Attributes:
        losses: on each sample, (n,).
        metric: mean over the split; None where only the losses were asked for.
    """

    losses: np.ndarray
    metric: float | None = None


class Selection:
    """Candidates and the choice between them.

    The rule: take the lowest loss on ``val``; of all that are behind it by no more than one standard error of the
    paired difference, take the largest average, because it removes most of the noise that ``val`` is too small to show.

    Args:
        reestimates: whether a measurement re-estimates BatchNorm first; for what is told of the cost.
        metric: the name of the metric, for what is told.
        known: name -> what an interrupted choice among the same candidates has measured already.
        remember: called with all candidates after each measurement.

    Attributes:
        candidates: in the order in which they were measured.
        seconds: that measuring took.
    """

    def __init__(
        self,
        *,
        reestimates: bool = True,
        metric: str = "metric",
        known: Mapping[str, Measured] = MappingProxyType({}),
        remember: Callable[[list[Candidate]], object] = lambda candidates: None,
    ) -> None:
        self.candidates: list[Candidate] = []
        self.seconds = 0.0
        self._reestimates, self._metric = reestimates, metric
        self._known, self._remember = known, remember

    def measure(self, name: str, effective_size: float, measure: Callable[..., Measured], *weights: Any) -> Candidate:
        """Add a candidate with what ``measure(*weights)`` finds, unless that is known."""
        _log.debug(f"measuring on 'val': {name}, candidate {len(self.candidates) + 1}")
        started, known = time.perf_counter(), self._known.get(name)
        self.candidates.append(Candidate(name, effective_size, *(measure(*weights) if known is None else known)))
        self.seconds += time.perf_counter() - started
        if known is None:
            self._remember(self.candidates)
        return self.candidates[-1]

    def add(self, name: str, measured: Candidate) -> None:
        """Add a candidate of another selection under a name of its own."""
        self.candidates.append(measured._replace(name=name))

    def lowest(self) -> Candidate:
        """Return the lowest loss, of equal ones the first; FaultError if none is finite."""
        return lowest(self.candidates)

    def choose(self) -> Candidate:
        """Choose by the rule of ``dimred.averaging.choice``; FaultError if no loss is finite."""
        return choose(self.candidates)

    def records(self) -> list[dict[str, Any]]:
        """Return of each candidate what it is, what was measured, and how far its loss is behind the lowest."""
        lowest = self.lowest()
        return [
            {"name": one.name, "effective_size": one.effective_size, "loss": one.loss, "metric": one.metric}
            | dict(zip(("behind", "standard_error"), behind(one, lowest), strict=True))
            for one in self.candidates
        ]

    def summary(self, what: str) -> dict[str, Any]:
        """Return what ``result.json`` holds of a choice: all candidates, and what measuring them cost."""
        return {f"{what}_candidates": self.records(), f"{what}_cost": self._cost(), f"{what}_seconds": self.seconds}

    def tell(self, what: str) -> None:
        """Log what was chosen, by which rule, among which candidates, and what that cost."""
        chosen = self.choose().name
        _log.info(f"{what}: {_told(chosen)}, the largest average within one standard error of the lowest loss on 'val'")
        for place, record in enumerate(sorted(self.records(), key=lambda record: record["loss"])):
            if place < _TOLD or record["name"] == chosen:
                error = f"{record['behind']:.4f} +- {record['standard_error']:.4f} behind"
                value = record["metric"]
                metric = "" if value is None else f"{self._metric} {metric_text(self._metric, value)}, "
                loss = f"loss {record['loss']:.4f}"
                _log.info(
                    f"  {_told(record['name'])}: {loss}, {metric}{error}, effective size {record['effective_size']:.3g}"
                )
        n, reestimations = self._cost().values()
        again = f", {reestimations} re-estimations of BatchNorm" if reestimations else ""
        _log.info(f"  {n} passes over 'val'{again}, {self.seconds:.1f} s")

    def _cost(self) -> dict[str, int]:
        n = len(self.candidates)
        return {"val_passes": n, "reestimations": n if self._reestimates else 0}


def _told(name: str) -> str:
    """Name a candidate for a reader; the points of stage 2 have the numbers of their epochs as names."""
    return f"epoch {name}" if name.isdecimal() else name
