"""Which average of the snapshots is best on ``val``: windows that end now or earlier, and other profiles."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from dimred.evaluate.averages import SnapshotAverages, Window
from dimred.evaluate.selection import Candidate, Selection
from dimred.merging.search import windows

Measure = Callable[[np.ndarray], np.ndarray]  # weights (M,) -> loss on each sample of ``val``, (n,)
_SHORTEST_EARLIER = 5  # snapshots; what ended earlier is of use only where it averages much


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
        """In one line."""
        return f"{self.candidate.name}: loss {self.candidate.loss:.4f}, of {len(self.selection.candidates)} candidates"


def search_windows(
    averages: SnapshotAverages,
    measure: Measure,
    others: Iterable[tuple[str, float, np.ndarray]],
    *,
    reestimates: bool = True,
) -> ChosenWeights:
    """Measure uniform windows, then linear and exponential profiles around the best of them; choose by ``Selection``.

    The longer a window, the more of the last epochs' noise is averaged away, and the further back it reaches (LAWA:
    Kaddour, 2022); which is better depends on the task. Each candidate is one call of ``measure``. Snapshots are read
    once for each place where windows end, once for the profiles, and once for the choice.

    Args:
        averages: of the snapshots.
        measure: weights -> losses.
        others: (name, width, weights) of candidates beside the windows, such as the last weights.
        reestimates: see ``Selection``.

    Raises:
        CheckpointError: a snapshot can't be read, or does not fit.
        FaultError: no loss is finite.
    """
    selection = Selection(reestimates=reestimates)
    given = {name: (width, weights) for name, width, weights in others}
    for name, (width, weights) in given.items():
        selection.measure(name, width, measure, weights)
    tried: dict[str, Window] = {}

    def try_all(candidates: Iterator[tuple[Window, np.ndarray]]) -> None:
        for window, weights in candidates:
            name = averages.name(window)
            tried[name] = window
            selection.measure(name, averages.width(window), measure, weights)

    for end, lengths in window_grid(len(averages.steps)).items():
        try_all(averages.uniform(end, lengths))
    if tried:
        best = min((one for one in selection.candidates if one.name in tried), key=lambda one: one.loss)
        profiles = profiles_around(tried[best.name])
        try_all(zip(profiles, averages.of(profiles), strict=True))
    chosen = selection.choose()
    if chosen.name in given:
        return ChosenWeights(given[chosen.name][1], chosen, selection)
    [weights] = averages.of([tried[chosen.name]])
    return ChosenWeights(weights, chosen, selection)


def window_grid(n: int) -> dict[int, list[int]]:
    """Where windows of n snapshots end -> their lengths: 2, 3, 5, 8, ... and all; where they end earlier, from 5 on."""
    grid: dict[int, list[int]] = {}
    for first, end in windows(n):
        if end - first >= (2 if end == n else _SHORTEST_EARLIER):
            grid.setdefault(end, []).append(end - first)
    return grid


def profiles_around(window: Window) -> list[Window]:
    """Other profiles of about the same width: falling linearly over it and over twice its length; moving averages.

    A moving average of span L has the decay (L - 1) / (L + 1), which makes it as wide as a uniform window of L; the
    spans are half, all and twice the window's length. It goes back to the first snapshot.
    """
    length, end = window.end - window.first, window.end
    found = [Window(max(end - reach, 0), end, "linear") for reach in (length, 2 * length) if min(reach, end) > 2]
    for span in sorted({max(length // 2, 2), length, 2 * length}):
        if span < end:
            found.append(Window(0, end, f"exponential={(span - 1) / (span + 1):.3f}"))
    return list(dict.fromkeys(found))
