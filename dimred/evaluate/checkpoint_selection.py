"""The points of a search that are saved, the averages along its path, and the best of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, nn

from dimred.distributed.ranks import Ranks
from dimred.evaluate.averages import SnapshotAverages
from dimred.evaluate.selection import Candidate, Selection
from dimred.evaluate.window_search import window_grid
from dimred.files.atomic import remove_leftovers, retry
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries

_LOSSES = "val_loss:"  # begins the names of the losses in a state


class CheckpointSelection:
    """Checkpoints of the points of a search, each with the losses that it is chosen by.

    A point is ``start``, ``average``, the number of an epoch, or ``final``; its file is ``{prefix}-{point}.ckpt``, that
    of an epoch ``{prefix}-{epoch}_{steps_per_epoch}.ckpt``.

    Args:
        folder: of the checkpoints; made when missing.
        prefix: begins the names.
        steps_per_epoch: for the names.
        ranks: all of them call the methods; rank 0 writes and reads.
        selection: of the points that were measured.
    """

    def __init__(self, folder: Path, prefix: str, steps_per_epoch: int, ranks: Ranks, selection: Selection) -> None:
        self.folder, self.selection = folder, selection
        self._prefix, self._steps_per_epoch = prefix, steps_per_epoch
        self._ranks = ranks
        if ranks.is_rank_zero and folder.is_dir():
            remove_leftovers(folder)

    def save(self, point: str, parameters: Sequence[Parameter]) -> None:
        """Write a point."""
        arrays = to_arrays(parameters)
        self._ranks.run_on_rank_zero(lambda: self._write(point, arrays))

    def read(self, point: str) -> dict[str, np.ndarray]:
        """The checkpoint of a point, on rank 0."""
        return read_checkpoint(self.path(point))

    def state_arrays(self) -> dict[str, np.ndarray]:
        """The losses of every point, for the state to resume from; a point whose losses are not finite is left out."""
        measured = self.selection.candidates
        return {_LOSSES + one.name: one.losses for one in measured if np.isfinite(one.losses).all()}

    def restore(self, arrays: Mapping[str, np.ndarray], widths: Mapping[str, float]) -> None:
        """Take the losses up from a state's arrays; ``widths`` of the points that are averages."""
        points = {name.removeprefix(_LOSSES): losses for name, losses in arrays.items() if name.startswith(_LOSSES)}
        self.selection.candidates = [
            Candidate(point, widths.get(point, 1.0), losses) for point, losses in points.items()
        ]

    def put_best(
        self, network: nn.Cell, put: Callable[[np.ndarray], None], measure: Callable[[np.ndarray], np.ndarray]
    ) -> dict[str, Any]:
        """Put the point, or the mean of the newest epochs' points, that ``selection`` chooses into the network.

        Args:
            network: set in place.
            put: sets weights (M,), with BatchNorm statistics that belong to them.
            measure: does so, and measures them on ``val``: losses (n,).

        Returns:
            ``{"kept": name}``, and the selection's summary.
        """
        layout, parameters = WeightLayout.from_network(network), list(network.get_parameters())
        has_epochs = any(one.name.isdecimal() for one in self.selection.candidates)
        series = self._ranks.run_on_rank_zero(lambda: CheckpointSeries.open(self.folder) if has_epochs else None)
        averages = SnapshotAverages(series, layout, self._ranks)
        epochs, windows = [step // self._steps_per_epoch for step in averages.steps], {}
        for window, weights in averages.uniform(len(epochs), window_grid(len(epochs)).get(len(epochs), [])):
            name = f"mean of epochs {epochs[window.first]} to {epochs[-1]}"
            windows[name] = window
            self.selection.measure(name, averages.width(window), measure, weights)
        kept = self.selection.choose().name
        if kept in windows:
            put(next(averages.of([windows[kept]])))
        else:
            self._ranks.run_on_rank_zero(lambda: from_arrays(parameters, self.read(kept), f"checkpoint {kept}"))
            self._ranks.broadcast(parameters)
        self.selection.tell("kept")
        return {"kept": kept} | self.selection.summary("kept")

    def _write(self, point: str, arrays: dict[str, np.ndarray]) -> None:
        self.folder.mkdir(exist_ok=True)
        retry(lambda: write_checkpoint(self.path(point), arrays))

    def path(self, point: str) -> Path:
        """The checkpoint's file."""
        name = f"{point}_{self._steps_per_epoch}" if point.isdecimal() else point
        return self.folder / f"{self._prefix}-{name}.ckpt"
