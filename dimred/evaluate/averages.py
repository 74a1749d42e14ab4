"""Plain averages of snapshots: the control that stage 2 has to be compared with."""

import numpy as np

from dimred.weights.checkpoint_io import read_checkpoint
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries


def average_snapshots(series: CheckpointSeries, layout: WeightLayout) -> np.ndarray:
    """The mean of all snapshots (SWA: Izmailov et al., 2018), (M,) float32, accumulated in float64.

    Raises:
        CheckpointError: a snapshot can't be read, or does not fit the layout.
    """
    total = np.zeros(layout.size, np.float64)
    for path in series.paths:
        total += layout.flatten(read_checkpoint(path, names=layout.names))
    return (total / len(series)).astype(np.float32)
