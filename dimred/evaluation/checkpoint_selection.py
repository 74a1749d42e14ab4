"""The points of a search that are saved, the averages along its path, and the best of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter

from dimred.averaging.choice import Candidate
from dimred.averaging.selection import Selection
from dimred.averaging.windows import latest_windows
from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.checkpoints.layout import WeightLayout
from dimred.distributed.ranks import Ranks
from dimred.evaluation.averages import Files, SnapshotAverages
from dimred.evaluation.evaluator import OnSplits
from dimred.io.atomic import remove_leftovers, retry
from dimred.vectors.parameters import from_arrays, to_arrays

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
        """Read the checkpoint of a point, on rank 0."""
        return read_checkpoint(self.path(point))

    def state_arrays(self) -> dict[str, np.ndarray]:
        """Return each point's losses for the state to resume from, except those that are not finite."""
        measured = self.selection.candidates
        return {_LOSSES + one.name: one.losses for one in measured if np.isfinite(one.losses).all()}

    def state_metrics(self) -> dict[str, float | None]:
        """Return each point's metric as plain JSON values, for the same state."""
        return {one.name: one.metric for one in self.selection.candidates}

    def restore(
        self, arrays: Mapping[str, np.ndarray], metrics: Mapping[str, float | None], sizes: Mapping[str, float]
    ) -> None:
        """Take up from a state what was measured.

        Args:
            arrays: of the state.
            metrics: of ``state_metrics``.
            sizes: effective sizes of the points that are averages.
        """
        points = {name.removeprefix(_LOSSES): losses for name, losses in arrays.items() if name.startswith(_LOSSES)}
        self.selection.candidates = [
            Candidate(point, sizes.get(point, 1.0), losses, metrics[point]) for point, losses in points.items()
        ]

    def put_best(self, on: OnSplits, epochs: Sequence[int]) -> dict[str, Any]:
        """Put the point, or the mean of the newest epochs' points, that ``selection`` chooses into the network.

        Args:
            on: has the network, which is set in place, and measures it.
            epochs: those of this run. The folder may hold others, which a resumed run has not made again.

        Returns:
            ``{"kept": name}``, and the selection's summary.
        """
        layout, parameters = WeightLayout.from_network(on.network), list(on.network.get_parameters())
        own = Files(epochs, [self.path(str(epoch)) for epoch in epochs]) if self._ranks.is_rank_zero else None
        averages, windows = SnapshotAverages(own, layout, self._ranks), {}
        for window in latest_windows(len(epochs)):
            name = f"mean of epochs {epochs[window.first]} to {epochs[-1]}"
            windows[name] = window
            self.selection.measure(name, averages.effective_size(window), on.on_val_of, averages.of(window))
        kept = self.selection.choose().name
        if kept in windows:
            on.put(averages.of(windows[kept]))
        else:
            self._ranks.run_on_rank_zero(lambda: from_arrays(parameters, self.read(kept), f"checkpoint {kept}"))
            self._ranks.broadcast(parameters)
        self.selection.tell("kept")
        return {"kept": kept} | self.selection.summary("kept")

    def _write(self, point: str, arrays: dict[str, np.ndarray]) -> None:
        self.folder.mkdir(exist_ok=True)
        retry(lambda: write_checkpoint(self.path(point), arrays))

    def path(self, point: str) -> Path:
        """Return the path of a point's checkpoint."""
        name = f"{point}_{self._steps_per_epoch}" if point.isdecimal() else point
        return self.folder / f"{self._prefix}-{name}.ckpt"
