"""A search's steps, perhaps a million, as columns of numbers."""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dimred.report.trend import places_to_draw

_KEYS = ("step", "loss", "loss_after", "step_size", "n_trials", "captured_fraction", "moved_inside", "moved_outside")
# Outcome of a step without an accepted trial -> the outcome in words.
FAILURES = {
    "no_decrease": "found no trial that lowers the loss enough",
    "non_finite_gradient": "skipped, because loss or gradient was not finite",
}


@dataclass(frozen=True)
class SearchSteps:
    """A search's steps.

    Attributes:
        numbers: record key -> its value in each of the n steps, (n,) float64, NaN for None; and for each of
            ``FAILURES`` whether it was the step's outcome, 1 or 0.
        points: evenly spaced step numbers, from 0, the start, to the last; (m,).
        coordinates: subspace coordinates after the steps ``points``, relative to the start; (m, k) float64.
    """

    numbers: Mapping[str, np.ndarray]
    points: np.ndarray
    coordinates: np.ndarray

    def __getitem__(self, key: str) -> np.ndarray:
        return self.numbers[key]

    def __len__(self) -> int:
        return len(self.numbers["step"])

    @property
    def gains(self) -> np.ndarray:
        """Return f(w) - f(w + t d) for each step on its batch, (n,): 0 without an accepted trial; may be NaN."""
        return self["loss"] - self["loss_after"]


def collect_steps(records: Iterable[Mapping[str, Any]], n_steps: int) -> SearchSteps:
    """Collect the columns from a search's records one by one, in 88 bytes per step.

    Args:
        records: the steps' records in order; see ``SearchResult.record``.
        n_steps: their number.
    """
    numbers = {key: array("d") for key in (*_KEYS, *FAILURES)}
    points = places_to_draw(n_steps + 1)
    here = np.zeros(())
    kept = []
    are_kept = frozenset(points.tolist())
    for step, record in enumerate(records, start=1):
        for key in _KEYS:
            numbers[key].append(np.nan if record[key] is None else record[key])
        for outcome in FAILURES:
            numbers[outcome].append(record["outcome"] == outcome)
        here = here + np.array(record["subspace_step"], np.float64)
        if step in are_kept:
            kept.append(here)
    coordinates = np.array([np.zeros_like(here), *kept])
    return SearchSteps({key: np.array(column) for key, column in numbers.items()}, points, coordinates)
