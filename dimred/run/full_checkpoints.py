"""Stage 1's full checkpoints: all parameters and the optimizer's state, to go on from in another folder."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dimred.errors import CheckpointError
from dimred.files.atomic import remove_leftovers
from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint

__all__ = ["FullCheckpoints", "read_full_checkpoint"]

_EPOCH = "epoch"


class FullCheckpoints:
    """The newest ``keep`` full checkpoints of a run, named ``{prefix}-{epoch}_{step in the epoch}.ckpt``.

    Args:
        directory: made when missing.
        prefix: begins the names.
        keep: how many stay.
    """

    def __init__(self, directory: Path, prefix: str, keep: int):
        directory.mkdir(parents=True, exist_ok=True)
        remove_leftovers(directory)
        self.directory = directory
        self.prefix = prefix
        self.keep = keep
        self._name = re.compile(rf"{re.escape(prefix)}-(\d{{1,18}})_\d{{1,18}}\.ckpt")

    def save(self, epoch: int, step_in_epoch: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the checkpoint of an epoch's end; then remove those that are too many, the oldest first."""
        path = self.directory / f"{self.prefix}-{epoch}_{step_in_epoch}.ckpt"
        write_checkpoint(path, arrays, {_EPOCH: epoch})
        for _, old in self._written()[: -self.keep]:
            old.unlink(missing_ok=True)

    def forget_after(self, epoch: int) -> None:
        """Remove the checkpoints of later epochs: the run goes on from an earlier one, and writes them again."""
        for written, path in self._written():
            if written > epoch:
                path.unlink(missing_ok=True)

    def _written(self) -> list[tuple[int, Path]]:
        """(epoch, file), by epoch."""
        matches = ((self._name.fullmatch(path.name), path) for path in self.directory.iterdir())
        return sorted((int(match[1]), path) for match, path in matches if match)


def read_full_checkpoint(path: Path, source: str) -> tuple[dict[str, np.ndarray], int]:
    """The arrays of a full checkpoint, and the epoch it was written after.

    Raises:
        CheckpointError: ``source`` is no full checkpoint.
    """
    arrays = read_checkpoint(path)
    epoch = arrays.pop(_EPOCH, None)
    if epoch is None or epoch.shape or epoch.dtype.kind != "i" or not 0 < int(epoch) < 1 << 31:
        raise CheckpointError(f"{source} is not a full checkpoint of stage 1")
    return arrays, int(epoch)
