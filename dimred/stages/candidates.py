"""The points that stage 2 chooses from, saved and measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter

from dimred.averaging.choice import Candidate, Selection, choose
from dimred.averaging.windows import Window
from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.distributed.ranks import Ranks
from dimred.evaluation.averages import Files, SnapshotAverages
from dimred.evaluation.evaluator import OnSplits
from dimred.io.atomic import remove_leftovers, retry
from dimred.stages.states import VAL_LOSSES
from dimred.vectors.parameters import from_arrays, to_arrays


class Points:
    """Checkpoints of the points of a stage 2, and the losses that ``val`` chooses by.

    A point is ``start``, ``average``, the number of an epoch, or ``final``. Its file is ``{prefix}-{point}.ckpt``; an
    epoch's is ``{prefix}-{epoch}_{steps_per_epoch}.ckpt``.

    Args:
        folder: folder of the checkpoints; made if missing.
        prefix, steps_per_epoch: parts of the files' names.
        ranks: all of them call the methods; rank 0 writes and reads.
        selection: gets the points that are measured.
    """

    def __init__(self, folder: Path, prefix: str, steps_per_epoch: int, ranks: Ranks, selection: Selection) -> None:
        self.selection = selection
        self._folder, self._prefix, self._steps_per_epoch, self._ranks = folder, prefix, steps_per_epoch, ranks
        if ranks.is_rank_zero and folder.is_dir():
            remove_leftovers(folder)

    def path(self, point: str) -> Path:
        """Return the path of a point's checkpoint."""
        name = f"{point}_{self._steps_per_epoch}" if point.isdecimal() else point
        return self._folder / f"{self._prefix}-{name}.ckpt"

    def save(self, point: str, parameters: Sequence[Parameter]) -> None:
        """Write a point's checkpoint."""
        arrays = to_arrays(parameters)

        def write() -> None:
            self._folder.mkdir(exist_ok=True)
            retry(lambda: write_checkpoint(self.path(point), arrays))

        self._ranks.run_on_rank_zero(write)

    def state_arrays(self) -> dict[str, np.ndarray]:
        """Return each point's losses for the state to resume from, except those that are not finite."""
        measured = [one for one in self.selection.candidates if np.isfinite(one.losses).all()]
        return {VAL_LOSSES + one.name: one.losses for one in measured}

    def state_values(self) -> dict[str, tuple[float, float | None]]:
        """Return each point's effective size and metric as plain JSON values, for the same state."""
        return {one.name: (one.effective_size, one.metric) for one in self.selection.candidates}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore the measurements from a state."""
        measured = {name.removeprefix(VAL_LOSSES): arrays[name] for name in arrays if name.startswith(VAL_LOSSES)}
        self.selection.candidates = [
            Candidate(point, values[point][0], losses, values[point][1]) for point, losses in measured.items()
        ]
        self.selection.n_added = sum(one.name == "average" for one in self.selection.candidates)

    def put_chosen(self, on: OnSplits, epochs: Sequence[int]) -> dict[str, Any]:
        """Choose among the points and the mean of the epochs, and put the choice into the network.

        Args:
            on: measures the network, which is set in place.
            epochs: the epochs of this run; the folder may hold others, which a resumed run has not made again.

        Returns:
            ``{"kept": name}``, and the selection's summary.
        """
        own = Files(epochs, [self.path(str(epoch)) for epoch in epochs]) if self._ranks.is_rank_zero else None
        averages = SnapshotAverages(own, on.layout, self._ranks)
        if len(epochs) > 1:
            name = f"mean of epochs {epochs[0]} to {epochs[-1]}"
            averages.measure(Window(0, len(epochs)), self.selection, on.on_val_of, name)
        kept = choose(self.selection.candidates).name
        average = averages.of_candidate(kept)
        if average is not None:
            on.put(average)
        else:
            file = self.path(kept)
            put_file(list(on.network.get_parameters()), file, str(file), self._ranks)
        self.selection.tell("kept")
        return {"kept": kept} | self.selection.summary("kept")


def put_file(parameters: Sequence[Parameter], file: Path, source: str, ranks: Ranks) -> None:
    """Set parameters on every rank to the values in a checkpoint that rank 0 reads; ``source`` names it in errors."""
    ranks.run_on_rank_zero(lambda: from_arrays(parameters, read_checkpoint(file), source))
    ranks.broadcast(parameters)
