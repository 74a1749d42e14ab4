"""The points of a search that are saved, and the best of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, nn

from dimred.console import say
from dimred.distributed.ranks import Ranks
from dimred.files.atomic import remove_leftovers, retry
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint


class CheckpointSelection:
    """Checkpoints of the points of a search, each with the loss that it is chosen by.

    A point is ``start``, the number of an epoch, or ``final``; its file is ``{prefix}-{point}.ckpt``, that of an epoch
    ``{prefix}-{epoch}_{steps_per_epoch}.ckpt``.

    Args:
        folder: of the checkpoints; made when missing.
        prefix: begins the names.
        steps_per_epoch: for the names.
        ranks: all of them call the methods; rank 0 writes and reads.

    Attributes:
        losses: by point, in the order in which they were saved.
    """

    def __init__(self, folder: Path, prefix: str, steps_per_epoch: int, ranks: Ranks) -> None:
        self.folder = folder
        self.losses: dict[str, float] = {}
        self._prefix, self._steps_per_epoch = prefix, steps_per_epoch
        self._ranks = ranks
        if ranks.is_rank_zero and folder.is_dir():
            remove_leftovers(folder)

    def save(self, point: str, parameters: Sequence[Parameter], loss: float | None) -> None:
        """Write a point; with a ``loss`` it may be chosen."""
        arrays = to_arrays(parameters)
        self._ranks.run_on_rank_zero(lambda: self._write(point, arrays))
        if loss is not None:
            self.losses[point] = loss

    def read(self, point: str) -> dict[str, np.ndarray]:
        """The checkpoint of a point, on rank 0."""
        return read_checkpoint(self._path(point))

    def put_best(self, network: nn.Cell) -> dict[str, Any]:
        """Put the point with the lowest loss into the network, of equal ones the earliest.

        Returns:
            ``{"kept": point, "val_loss": losses}``.
        """
        kept = min(self.losses, key=lambda point: self.losses[point])
        parameters = list(network.get_parameters())
        self._ranks.run_on_rank_zero(lambda: from_arrays(parameters, self.read(kept), f"checkpoint {kept}"))
        self._ranks.broadcast(parameters)
        points = ", ".join(f"{point} {loss:.4f}" for point, loss in self.losses.items())
        say(f"kept: {kept}, the lowest loss on 'val' (of equal ones the earliest): {points}")
        return {"kept": kept, "val_loss": self.losses}

    def _write(self, point: str, arrays: dict[str, np.ndarray]) -> None:
        self.folder.mkdir(exist_ok=True)
        retry(lambda: write_checkpoint(self._path(point), arrays))

    def _path(self, point: str) -> Path:
        name = f"{point}_{self._steps_per_epoch}" if point.isdecimal() else point
        return self.folder / f"{self._prefix}-{name}.ckpt"
