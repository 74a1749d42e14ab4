"""The points of a search that are saved, and the best of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from dimred.distributed.ranks import Ranks
from dimred.files.atomic import remove_leftovers, retry
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint


class CheckpointSelection:
    """Checkpoints ``{prefix}-{point}.ckpt`` of a network, each with its loss on the split that chooses.

    Args:
        folder: of the checkpoints; made when missing.
        prefix: begins the names.
        parameters: gives what is saved.
        network: what is put back.
        ranks: all of them call the methods; rank 0 writes and reads.
        loss: the one to choose by; None chooses nothing.

    Attributes:
        losses: by point, in the order they were saved in.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str,
        parameters: Callable[[], list[Any]],
        network: nn.Cell,
        ranks: Ranks,
        loss: Callable[[], float] | None,
    ) -> None:
        self.folder = folder
        self.losses: dict[str, float] = {}
        self._prefix = prefix
        self._parameters = parameters
        self._network = network
        self._ranks = ranks
        self._loss = loss
        if ranks.is_rank_zero and folder.is_dir():
            remove_leftovers(folder)

    def save(self, point: str, name: str = "") -> None:
        """Write the network as it is; ``name`` stands in the file's name."""
        arrays = to_arrays(self._network.get_parameters() if point == "final" else self._parameters())
        self._ranks.run_on_rank_zero(lambda: self._write(name or point, arrays))
        if self._loss is not None and point != "final":
            self.losses[point] = self._loss()

    def read(self, name: str) -> dict[str, np.ndarray]:
        """A checkpoint, on rank 0."""
        return read_checkpoint(self._path(name))

    def keep_best(self, name: Callable[[str], str]) -> dict[str, Any]:
        """Go back to the point with the lowest loss, of equal ones the earliest; what is told of it."""
        kept = min(self.losses, key=lambda point: self.losses[point])
        parameters = list(self._network.get_parameters())
        self._ranks.run_on_rank_zero(lambda: from_arrays(parameters, self.read(name(kept)), f"checkpoint {kept}"))
        self._ranks.broadcast(parameters)
        points = ", ".join(f"{point} {loss:.4f}" for point, loss in self.losses.items())
        print(f"kept: {kept}, the lowest loss on 'val' (of equal ones the earliest): {points}", flush=True)
        return {"kept": kept, "val_loss": self.losses}

    def _write(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        self.folder.mkdir(exist_ok=True)
        retry(lambda: write_checkpoint(self._path(name), arrays))

    def _path(self, name: str) -> Path:
        return self.folder / f"{self._prefix}-{name}.ckpt"
