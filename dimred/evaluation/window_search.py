"""The choice of an average of the snapshots on ``val``: windows that end now or earlier, and other profiles."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from dimred.averaging.choice import Candidate
from dimred.averaging.selection import Measured, Selection
from dimred.averaging.windows import Window, profiles_around, uniform_windows
from dimred.evaluation.averages import SnapshotAverages

Measure = Callable[[np.ndarray], Measured]  # weights (M,) -> what they have on ``val``


class ChosenWeights(NamedTuple):
    """What a search found.

    Attributes:
        weights: (M,) float32.
        candidate: as it was measured.
        selection: all candidates.
    """

    weights: np.ndarray
    candidate: Candidate
    selection: Selection

    def __repr__(self) -> str:
        """Describe the choice in one line."""
        return f"{self.candidate.name}: loss {self.candidate.loss:.4f}, of {len(self.selection.candidates)} candidates"


def search_windows(
    averages: SnapshotAverages,
    measure: Measure,
    others: Iterable[tuple[str, float, np.ndarray]],
    selection: Selection,
) -> ChosenWeights:
    """Measure uniform windows, then linear and exponential profiles around the best of them; choose by ``Selection``.

    The longer a window, the more of the last epochs' noise is averaged away, and the further back it reaches (LAWA:
    Kaddour, 2022); which is better depends on the task. Each candidate is one call of ``measure``, and one reading of
    its snapshots.

    Args:
        averages: of the snapshots.
        measure: weights -> loss and metric.
        others: (name, effective size, weights) of candidates beside the windows, such as the last weights.
        selection: gets the candidates.

    Raises:
        CheckpointError: a snapshot can't be read, or does not fit.
        FaultError: no loss is finite.
    """
    given = {name: (size, weights) for name, size, weights in others}
    for name, (size, weights) in given.items():
        selection.measure(name, size, measure, weights)
    tried: dict[str, Window] = {}

    def try_window(window: Window) -> float:
        name = averages.name(window)
        tried[name] = window
        return selection.measure(name, averages.effective_size(window), measure, averages.of(window)).loss

    windows = uniform_windows(len(averages.steps))
    if windows:
        losses = [try_window(window) for window in windows]
        for profile in profiles_around(windows[int(np.argmin(losses))]):
            try_window(profile)
    chosen = selection.choose()
    if chosen.name in given:
        return ChosenWeights(given[chosen.name][1], chosen, selection)
    return ChosenWeights(averages.of(tried[chosen.name]), chosen, selection)
