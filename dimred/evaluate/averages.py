"""Averages of a series of snapshots as weight vectors: the controls of stage 2, and the places where it may begin.

Snapshots are read one at a time, so that a series of any length fits into memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dimred.merging.profiles import profile_coefficients
from dimred.weights.checkpoint_io import read_checkpoint
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries

Score = Callable[[np.ndarray], float]


def average_snapshots(series: CheckpointSeries, layout: WeightLayout, profile: str = "uniform") -> np.ndarray:
    """The mean of all snapshots with a profile, (M,) float32, accumulated in float64.

    Uniform, it is SWA (Izmailov et al., 2018), and LAWA (Kaddour, 2022) of ``series.select(last=k)``.

    Args:
        series: the snapshots, oldest first.
        layout: of the weights.
        profile: how much each snapshot counts; see ``profile_coefficients``.

    Raises:
        CheckpointError: a snapshot can't be read, or does not fit the layout.
    """
    coefficients = profile_coefficients(profile, [entry.step for entry in series.entries])
    return combine_snapshots(series, layout, coefficients.tolist())


def combine_snapshots(series: CheckpointSeries, layout: WeightLayout, coefficients: Sequence[float]) -> np.ndarray:
    """sum(c_i x_i) / sum(c_i) over the snapshots, (M,) float32, accumulated in float64.

    Raises:
        CheckpointError: as ``average_snapshots``.
    """
    total = np.zeros(layout.size)
    for path, coefficient in zip(series.paths, coefficients, strict=True):
        if coefficient != 0:
            total += coefficient * _vector(path, layout).astype(np.float64)
    return (total / sum(coefficients)).astype(np.float32)


class RunningSums:
    """Sums over the newest n of some vectors, from which the mean with any profile costs no more reading.

    Args:
        size: M.
        decays: for which ``exponential`` will be asked.
    """

    def __init__(self, size: int, decays: Sequence[float] = ()) -> None:
        self.n = 0
        self._sum = np.zeros(size)
        self._moment = np.zeros(size)  # sum(i x_i), where the newest is number 0
        self._decayed = {decay: np.zeros(size) for decay in decays}
        self._oldest = np.zeros(size)

    def add(self, vector: np.ndarray) -> None:
        """The next older vector, (M,)."""
        self._oldest = vector.astype(np.float64)
        self._sum += self._oldest
        self._moment += self.n * self._oldest
        for decay, total in self._decayed.items():
            total += decay**self.n * self._oldest
        self.n += 1

    def uniform(self) -> np.ndarray:
        """The plain mean of the newest n, (M,) float32."""
        return (self._sum / self.n).astype(np.float32)

    def linear(self) -> np.ndarray:
        """The mean with weights n, ..., 1 from the newest to the oldest, (M,) float32."""
        return ((self.n * self._sum - self._moment) / (self.n * (self.n + 1) / 2)).astype(np.float32)

    def exponential(self, decay: float) -> np.ndarray:
        """The moving average a <- d a + (1 - d) x from the oldest of them on, (M,) float32."""
        average: np.ndarray = (1 - decay) * self._decayed[decay] + decay**self.n * self._oldest
        return average.astype(np.float32)


def running_sums(
    series: CheckpointSeries, layout: WeightLayout, decays: Sequence[float] = (), last: int | None = None
) -> Iterator[RunningSums]:
    """The sums over every window that ends at one snapshot, from the shortest on; each file is read once for all.

    The object is the same each time, with one snapshot more in it.

    Args:
        series: the snapshots.
        layout: of the weights.
        decays: for which ``exponential`` will be asked.
        last: the position of the snapshot where the windows end; default the newest.

    Raises:
        CheckpointError: as ``average_snapshots``.
    """
    sums = RunningSums(layout.size, decays)
    for path in series.paths[: None if last is None else last + 1][::-1]:
        sums.add(_vector(path, layout))
        yield sums


class Choice(NamedTuple):
    """One of several candidates.

    Attributes:
        name: of the candidate.
        weights: (M,) float32.
        losses: of every candidate, by name.
    """

    name: str
    weights: np.ndarray
    losses: dict[str, float]


def best_of(candidates: Iterable[tuple[str, np.ndarray]], loss: Score) -> Choice:
    """The candidate with the lowest loss; of equal ones the first."""
    losses: dict[str, float] = {}
    best: tuple[str, np.ndarray] | None = None
    for name, weights in candidates:
        losses[name] = loss(weights)
        if best is None or losses[name] < losses[best[0]]:
            best = (name, weights)
    if best is None:
        raise ValueError("there are no candidates")
    return Choice(*best, losses)


def _vector(path: Path, layout: WeightLayout) -> np.ndarray:
    return layout.flatten(read_checkpoint(path, names=layout.names))
