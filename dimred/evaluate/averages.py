"""Weighted means of snapshots as weight vectors, on every rank. One file is in memory at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dimred.distributed.ranks import ALONE, Ranks
from dimred.merging.profiles import profile_coefficients
from dimred.weights.checkpoint_io import read_checkpoint
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries


def combine_snapshots(
    series: CheckpointSeries, layout: WeightLayout, coefficients: Sequence[float] | np.ndarray
) -> np.ndarray:
    """sum(c_i x_i) / sum(c_i) over the snapshots, (M,) float32, accumulated in float64.

    Coefficients (K, N) give K means, (K, M), for one reading of the files.

    Args:
        series: the N snapshots, oldest first.
        layout: of the weights.
        coefficients: c, (N,) or (K, N).

    Raises:
        CheckpointError: a snapshot can't be read, or does not fit the layout.
    """
    rows = np.atleast_2d(np.asarray(coefficients, np.float64))
    totals = np.zeros((len(rows), layout.size))
    for path, column in list(zip(series.paths, rows.T, strict=True))[::-1]:  # as the windows are summed
        if column.any():
            vector = _vector(path, layout)
            for total, coefficient in zip(totals, column, strict=True):
                total += vector if coefficient == 1 else coefficient * vector.astype(np.float64)
    means = (totals / rows.sum(1, keepdims=True)).astype(np.float32)
    return means if np.ndim(coefficients) > 1 else means[0]


def average_snapshots(series: CheckpointSeries, layout: WeightLayout, profile: str = "uniform") -> np.ndarray:
    """The mean of all snapshots with a profile of ``profile_coefficients``, (M,) float32.

    Uniform, it is SWA (Izmailov et al., 2018), and LAWA (Kaddour, 2022) of ``series.select(last=k)``.

    Raises:
        CheckpointError: as ``combine_snapshots``.
    """
    return combine_snapshots(series, layout, profile_coefficients(profile, [entry.step for entry in series.entries]))


class Window(NamedTuple):
    """Some successive snapshots, and how much each of them counts.

    Attributes:
        first, end: their numbers, from 0, oldest first; ``end`` is not in it.
        profile: a name of ``profile_coefficients``.
    """

    first: int
    end: int
    profile: str = "uniform"


class SnapshotAverages:
    """Means over windows of a series of snapshots, on every rank.

    Args:
        series: on rank 0, which reads; None elsewhere, and where there are no snapshots.
        layout: of the weights.
        ranks: all of them call the methods.

    Attributes:
        steps: of the snapshots, oldest first, on every rank.
    """

    def __init__(self, series: CheckpointSeries | None, layout: WeightLayout, ranks: Ranks = ALONE) -> None:
        self._series, self._layout, self._ranks = series, layout, ranks
        own = np.array([entry.step for entry in series.entries] if series is not None else [], np.int64)
        self.steps: list[int] = np.frombuffer(ranks.broadcast_bytes(own.tobytes()), np.int64).tolist()

    def coefficients(self, window: Window) -> np.ndarray:
        """How much each of all snapshots counts, (N,) float64."""
        found = np.zeros(len(self.steps))
        found[window.first : window.end] = profile_coefficients(window.profile, self.steps[window.first : window.end])
        return found

    def width(self, window: Window) -> float:
        """How many equally weighted snapshots have as small a variance: sum(c)^2 / sum(c^2) (Kish, 1965)."""
        found = self.coefficients(window)
        return float(found.sum() ** 2 / (found**2).sum())

    def name(self, window: Window) -> str:
        """Its name in the log and in the result."""
        first, last = self.steps[window.first], self.steps[window.end - 1]
        return f"{window.profile} of {window.end - window.first} snapshots, steps {first} to {last}"

    def uniform(self, end: int, lengths: Iterable[int]) -> Iterator[tuple[Window, np.ndarray]]:
        """The uniform windows of these lengths before snapshot ``end``, shortest first; each file is read once for all.

        Raises:
            CheckpointError: as ``combine_snapshots``; a DimredError on the other ranks.
        """
        total, taken = np.zeros(self._layout.size if self._series is not None else 0), 0

        def grow(series: CheckpointSeries) -> np.ndarray:
            for path in series.paths[end - length : end - taken][::-1]:
                np.add(total, _vector(path, self._layout), out=total)
            return (total / length).astype(np.float32)

        for length in sorted(lengths):
            yield Window(end - length, end), shared(self._on_rank_zero(grow), self._layout, self._ranks)
            taken = length

    def of(self, windows: Sequence[Window]) -> Iterator[np.ndarray]:
        """The mean over each window, (M,) float32; each file is read once for all.

        Raises:
            CheckpointError: as ``uniform``.
        """
        if not windows:
            return
        rows = np.array([self.coefficients(window) for window in windows])
        means = self._on_rank_zero(lambda series: combine_snapshots(series, self._layout, rows))
        for number in range(len(windows)):
            yield shared(None if means is None else means[number], self._layout, self._ranks)

    def _on_rank_zero(self, work: Callable[[CheckpointSeries], np.ndarray]) -> np.ndarray | None:
        series = self._series
        return self._ranks.run_on_rank_zero(lambda: None if series is None else work(series))


def shared(vector: np.ndarray | None, layout: WeightLayout, ranks: Ranks) -> np.ndarray:
    """Rank 0's vector (M,), on every rank."""
    return ranks.sum(np.zeros(layout.size, np.float32) if vector is None else vector)


def _vector(path: Path, layout: WeightLayout) -> np.ndarray:
    return layout.flatten(read_checkpoint(path, names=layout.names))
