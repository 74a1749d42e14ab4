"""Averages of saved weights as candidates, on every rank, and the choice of the best one on ``val``."""

from collections.abc import Callable

import numpy as np

from dimred.averaging.choice import Candidate, Choice, choose
from dimred.averaging.mean import mean_vector, open_fitting
from dimred.averaging.windows import Window, effective_size, newest_windows
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.distributed.ranks import ALONE, Ranks
from dimred.run_files.metric import Measurement


class SnapshotAverages:
    """Averages of saved weights, on every rank.

    Args:
        series: the saved weights, on rank 0, which reads them; None on other ranks, and where no weights are saved.
        layout: the weights' layout.
        ranks: the job's ranks; all of them call the methods.

    Attributes:
        steps: the files' steps, oldest first, on every rank.

    Raises:
        CheckpointError: a file can't be read or does not fit the layout; the other ranks raise DimredError.
    """

    def __init__(self, series: CheckpointSeries | None, layout: WeightLayout, ranks: Ranks = ALONE) -> None:
        self._layout = layout
        self._ranks = ranks
        paths = () if series is None else series.paths
        steps = ranks.broadcast_bytes(np.array([] if series is None else series.steps, np.int64).tobytes())
        self.steps: list[int] = np.frombuffer(steps, np.int64).tolist()
        self._checkpoints = ranks.run_on_rank_zero(lambda: open_fitting(paths, layout)) or []

    def of(self, window: Window) -> np.ndarray:
        """Compute a window's average, float32 (M,).

        Raises:
            CheckpointError: a file changed or can't be read; the other ranks raise DimredError.
        """
        coefficients = window.coefficients(self.steps)
        mean = self._ranks.run_on_rank_zero(lambda: mean_vector(self._checkpoints, coefficients, self._layout))
        return self._ranks.sum(np.zeros(self._layout.size, np.float32) if mean is None else mean)

    def measure(self, window: Window, choice: Choice, measure_val_of: Callable[[np.ndarray], Measurement]) -> Candidate:
        """Measure a window's average, add it to a choice as a candidate, and return the candidate.

        Args:
            window: which of the files to average.
            choice: gets the candidate.
            measure_val_of: weights (M,) -> loss and metric on ``val``.

        Raises:
            CheckpointError: as for ``of``.
        """
        size = effective_size(window.coefficients(self.steps))
        return choice.measure(window.name(self.steps), size, lambda: measure_val_of(self.of(window)), window)


def choose_average(
    averages: SnapshotAverages,
    measure_val_of: Callable[[np.ndarray], Measurement],
    last: np.ndarray,
    choice: Choice,
) -> tuple[Candidate, np.ndarray]:
    """Choose by loss among the last weights and the averages of the newest snapshots; see ``newest_windows``.

    A longer window averages away more of the last epochs' noise, but reaches further back (LAWA: Kaddour, 2022). Which
    length is best depends on the task.

    Args:
        averages: averages of the snapshots.
        measure_val_of: weights (M,) -> loss and metric on ``val``; called once per candidate. Weights that are not
            finite are not measured and never chosen.
        last: the last weights, (M,) float32.
        choice: gets the candidates.

    Returns:
        The chosen candidate, and its weights, (M,) float32.

    Raises:
        CheckpointError: a snapshot can't be read, or does not fit.
        FaultError: no loss is finite.
    """

    def measure(weights: np.ndarray) -> Measurement:
        # Some layers, such as ReLU on a CPU, hide a NaN, so the loss may not show it.
        return measure_val_of(weights) if np.isfinite(weights).all() else Measurement(np.full(1, np.inf))

    choice.measure("last", 1.0, lambda: measure(last))
    for window in newest_windows(len(averages.steps)):
        averages.measure(window, choice, measure)
    best = choose(choice.candidates)
    return best, averages.of(best.source) if isinstance(best.source, Window) else last
