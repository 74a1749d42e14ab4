"""Averages of saved weights, on every rank."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from dimred.averaging.mean import mean_vector
from dimred.averaging.windows import Window, effective_size
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.opened import Checkpoint, open_file
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import CheckpointError


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
    """Averages of a series of snapshots, on every rank.

    Args:
        saved: the snapshots, on rank 0, which reads; None elsewhere, and where there are none.
        layout: of the weights.
        ranks: all of them call the methods.

    Attributes:
        steps: of the snapshots, oldest first, on every rank.

    Raises:
        CheckpointError: a snapshot can't be read, or does not fit the layout; a DimredError on the other ranks.
    """

    def __init__(self, saved: SavedWeights | None, layout: WeightLayout, ranks: Ranks = ALONE) -> None:
        self._layout, self._ranks = layout, ranks
        own = np.array([] if saved is None else saved.steps, np.int64)
        self.steps: list[int] = np.frombuffer(ranks.broadcast_bytes(own.tobytes()), np.int64).tolist()
        paths = [] if saved is None else saved.paths
        self._checkpoints = ranks.run_on_rank_zero(lambda: [_open_fitting(path, layout) for path in paths]) or []

    def effective_size(self, window: Window) -> float:
        """Return how many equal snapshots the average over a window is worth."""
        return effective_size(window.coefficients(self.steps))

    def name(self, window: Window) -> str:
        """Return the name of a window for the log and the result."""
        return window.name(self.steps)

    def of(self, window: Window) -> np.ndarray:
        """Compute the average over a window, float32 (M,).

        Raises:
            CheckpointError: a snapshot changed or can't be read; a DimredError on the other ranks.
        """
        coefficients = window.coefficients(self.steps)
        found = self._ranks.run_on_rank_zero(lambda: mean_vector(self._checkpoints, coefficients, self._layout))
        return shared(found, self._layout, self._ranks)


def shared(vector: np.ndarray | None, layout: WeightLayout, ranks: Ranks) -> np.ndarray:
    """Return rank 0's vector (M,), on every rank."""
    return ranks.sum(np.zeros(layout.size, np.float32) if vector is None else vector)


def _open_fitting(path: Path, layout: WeightLayout) -> Checkpoint:
    checkpoint = open_file(path)
    misfit = layout.misfit({name: place.shape for name, place in checkpoint.places.items()})
    if misfit:
        raise CheckpointError(f"{path} does not fit the network: {misfit}.")
    return checkpoint
