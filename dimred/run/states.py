"""The checkpoints of a run that are more than weights: states to resume from, and stage 1's full checkpoints.

A state is one whole, checksummed file, ``OUT/resume/state-STEP.ckpt``.
"""

import errno
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.errors import CheckpointError, FaultError
from dimred.files.atomic import remove_leftovers
from dimred.files.run_names import STATES
from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint

__all__ = ["FullCheckpoints", "RunState", "RunStates", "check_finite", "read_full_checkpoint", "read_state"]

_KEEP = 2  # the newest, and one to go back to if that is damaged later
_PROGRESS = "dimred_progress"
_NAME = re.compile(r"state-(\d{1,18})\.ckpt")
_EPOCH = "epoch"


class RunState(NamedTuple):
    """Everything a run goes on with.

    Attributes:
        arrays: name -> value of every parameter and whatever else is an array.
        progress: the rest, as plain JSON values.
        path: the file it stands in.
    """

    arrays: dict[str, np.ndarray]
    progress: dict[str, Any]
    path: Path


class RunStates:
    """The newest states of a run; an older one is removed only when a newer one is safe.

    Args:
        out: folder of the run.
    """

    def __init__(self, out: Path):
        self.directory = out / STATES

    def save(self, step: int, arrays: Mapping[str, np.ndarray], progress: Mapping[str, Any]) -> Path:
        """Write the state after ``step`` updates.

        Where the disk is full, the older states but the newest give way first.

        Raises:
            FaultError: a number is not finite; a state with such numbers is worth nothing.
            OSError: it can't be written; the states before are still there.
        """
        check_finite(arrays, step)
        self.directory.mkdir(exist_ok=True)
        remove_leftovers(self.directory)
        path = self.directory / f"state-{step}.ckpt"
        extra = {_PROGRESS: json.dumps(progress)}
        try:
            write_checkpoint(path, arrays, extra)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._remove_all_but(1):
                raise
            write_checkpoint(path, arrays, extra)
        self._remove_all_but(_KEEP)
        return path

    def newest(self, note: Callable[[str], None]) -> RunState | None:
        """The newest state that is whole; None where there is none.

        Args:
            note: is told of each file that is damaged, and left alone.
        """
        for path in reversed(self._paths()):
            try:
                return read_state(path)
            except CheckpointError as error:
                note(f"{error} The state before it is taken")
        return None

    def newest_in_words(self) -> str:
        """Which state a run would go on from, for an error's text."""
        paths = self._paths()
        return f"the last good state is {paths[-1]}" if paths else "no state was saved yet"

    def forget_after(self, step: int) -> None:
        """Remove the states after ``step``, from which the run goes on, and older ones a killed run left over."""
        for path in self._paths():
            if _step(path) > step:
                path.unlink(missing_ok=True)
        self._remove_all_but(_KEEP)

    def _paths(self) -> list[Path]:
        """The files, by step."""
        if not self.directory.is_dir():
            return []
        return sorted((path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)), key=_step)

    def _remove_all_but(self, keep: int) -> bool:
        old = self._paths()[:-keep]
        for path in old:
            path.unlink(missing_ok=True)
        return bool(old)


def read_state(path: Path) -> RunState:
    """Read a state.

    Raises:
        CheckpointError: it is missing, damaged, or another kind of file.
    """
    arrays = read_checkpoint(path)
    try:
        progress = json.loads(str(arrays.pop(_PROGRESS).item()))
    except (KeyError, ValueError, RecursionError):
        progress = None
    if not isinstance(progress, dict):
        raise CheckpointError(f"{path} is no state of a run.")
    return RunState(arrays, progress, path)


def check_finite(arrays: Mapping[str, np.ndarray], step: int) -> None:
    """Refuse numbers that are not finite: a diverged training must not push good snapshots and states out.

    Raises:
        FaultError: names the first parameter that has one.
    """
    for name, value in arrays.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise FaultError(f"after step {step} {name!r} has numbers that are not finite: the training diverged")


def _step(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


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
