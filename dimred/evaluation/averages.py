"""Averages of saved weights as candidates, on every rank."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from dimred.averaging.choice import Candidate, Measured, Selection
from dimred.averaging.mean import mean_vector, open_fitting
from dimred.averaging.windows import Window, effective_size
from dimred.checkpoints.layout import WeightLayout
from dimred.distributed.ranks import ALONE, Ranks


class SavedWeights(Protocol):
    """Files of weights, oldest first, and the steps they were taken after; such as a ``CheckpointSeries``."""

    @property
    def steps(self) -> Sequence[int]: ...
    @property
    def paths(self) -> Sequence[Path]: ...


class Files(NamedTuple):
    """Files of weights that are no series."""

    steps: Sequence[int]
    paths: Sequence[Path]


class SnapshotAverages:
    """Averages of saved weights, on every rank.

    Args:
        saved: such as the snapshots, on rank 0, which reads; None elsewhere, and where there are none.
        layout: of the weights.
        ranks: all of them call the methods.

    Attributes:
        steps: of the files, oldest first, on every rank.

    Raises:
        CheckpointError: a file can't be read, or does not fit the layout; a DimredError on the other ranks.
    """

    def __init__(self, saved: SavedWeights | None, layout: WeightLayout, ranks: Ranks = ALONE) -> None:
        self._layout, self._ranks = layout, ranks
        own = np.array([] if saved is None else saved.steps, np.int64)
        self.steps: list[int] = np.frombuffer(ranks.broadcast_bytes(own.tobytes()), np.int64).tolist()
        paths = [] if saved is None else saved.paths
        self._checkpoints = ranks.run_on_rank_zero(lambda: open_fitting(paths, layout)) or []
        self._measured: dict[str, Window] = {}

    def of(self, window: Window) -> np.ndarray:
        """Compute the average over a window, float32 (M,).

        Raises:
            CheckpointError: a file changed or can't be read; a DimredError on the other ranks.
        """
        coefficients = window.coefficients(self.steps)
        found = self._ranks.run_on_rank_zero(lambda: mean_vector(self._checkpoints, coefficients, self._layout))
        return shared(found, self._layout, self._ranks)

    def measure(
        self,
        windows: Iterable[Window],
        selection: Selection,
        measure: Callable[[np.ndarray], Measured],
        name_of: Callable[[Window], str] | None = None,
    ) -> list[Candidate]:
        """Make the averages over some windows candidates; each is one reading of its files.

        Args:
            windows: of the files.
            selection: gets the candidates.
            measure: weights (M,) -> what they have on ``val``. It is not called for a candidate that is known.
            name_of: names a window; None for a name with its profile and steps.
        """

        def of_window(window: Window) -> Measured:
            return measure(self.of(window))

        found = []
        for window in windows:
            name = window.name(self.steps) if name_of is None else name_of(window)
            size = effective_size(window.coefficients(self.steps))
            self._measured[name] = window
            found.append(selection.measure(name, size, partial(of_window, window)))
        return found

    def of_candidate(self, name: str) -> np.ndarray | None:
        """Compute the average of a candidate, float32 (M,); return None if it is none of those measured here."""
        return self.of(self._measured[name]) if name in self._measured else None


def shared(vector: np.ndarray | None, layout: WeightLayout, ranks: Ranks) -> np.ndarray:
    """Return rank 0's vector (M,), on every rank."""
    return ranks.sum(np.zeros(layout.size, np.float32) if vector is None else vector)
