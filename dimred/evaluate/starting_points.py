"""Where a search may begin, for a held-out split to choose."""

from collections.abc import Iterator

import numpy as np

from dimred.evaluate.averages import average_snapshots
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries

_FRACTIONS = (2, 4, 8)


def starting_points(
    last: np.ndarray, mean: np.ndarray | None, series: CheckpointSeries | None, layout: WeightLayout
) -> Iterator[tuple[str, np.ndarray]]:
    """The mean of all snapshots, of the latest half, quarter and eighth of them, and the last weights.

    The longer the window, the more of the last epochs' noise is averaged away, and the further back it reaches (LAWA:
    Kaddour, 2022); which is better depends on how far training still moved. Each is computed when it is asked for.

    Args:
        last: the weights that training ended with, (M,) float32.
        mean: of all snapshots, (M,) float32; None leaves it out.
        series: the snapshots; None leaves out the means of the latest.
        layout: of the weights.

    Raises:
        CheckpointError: a snapshot can't be read, or does not fit the layout.
    """
    if mean is not None:
        yield "mean", mean
    for fraction in _FRACTIONS:
        n_latest = 0 if series is None else len(series) // fraction
        if series is not None and n_latest > 1:
            yield f"mean of the latest {n_latest}", average_snapshots(series.select(last=n_latest), layout)
    yield "last", last
