"""Checkpoints that hold more than weights: the states that a run resumes from, and stage 1's full checkpoints."""

import errno
import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.errors import CheckpointError, DivergedError, RunError
from dimred.io.atomic import make_folder, remove_leftovers
from dimred.io.file_format import STATE
from dimred.run_files.run_names import STATES

_N_STATES = 2  # the newest, and one to go back to if that is damaged later
VAL_LOSSES = "val_loss:"  # prefix of the losses on the samples of ``val`` in a state
# Names of entries beside the arrays.
_VALUES = "dimred_values"
_EPOCH = "epoch"


class _NumberedFiles:
    """The files of a folder whose names match ``name``, numbered by its first group; the newest ``keep`` stay."""

    def __init__(self, directory: Path, name: str, keep: int):
        self.directory = directory
        self.keep = keep
        self._name = re.compile(name)

    def forget_after(self, number: int) -> None:
        """Remove the files with a higher number, which the run writes again, and all but the newest ``keep`` others."""
        for number_of_file, path in self._files():
            if number_of_file > number:
                path.unlink(missing_ok=True)
        self._remove_all_but(self.keep)

    def _files(self) -> list[tuple[int, Path]]:
        """Return the files as (number, path), sorted by number."""
        paths = self.directory.iterdir() if self.directory.is_dir() else ()
        return sorted((int(match[1]), path) for path in paths if (match := self._name.fullmatch(path.name)))

    def _remove_all_but(self, keep: int) -> bool:
        old = self._files()[:-keep]
        for _, path in old:
            path.unlink(missing_ok=True)
        return bool(old)


class RunState(NamedTuple):
    """Everything that a run needs to resume.

    Attributes:
        arrays: name -> value of every parameter, and of everything else that is an array.
        values: the rest, as plain JSON values.
        path: the file that it was read from.
    """

    arrays: dict[str, np.ndarray]
    values: dict[str, Any]
    path: Path


class RunStates(_NumberedFiles):
    """The newest states of a run, ``out/resume/state-STEP.ckpt``; an older one is removed once a newer one is safe.

    Args:
        out: folder of the run.
    """

    def __init__(self, out: Path):
        super().__init__(out / STATES, r"state-(\d{1,18})\.ckpt", _N_STATES)

    def save(self, step: int, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Write the state after ``step`` steps; on a full disk, remove all older states except the newest to make room.

        Args:
            step: number of steps that the run has made.
            arrays, values: as in ``RunState``.

        Raises:
            OSError: the file can't be written; the newest earlier state is still there.
        """
        make_folder(self.directory)
        remove_leftovers(self.directory, is_only_writer=True)
        path = self.directory / f"state-{step}.ckpt"
        entries = {_VALUES: json.dumps(STATE.marked(values))}
        try:
            write_checkpoint(path, arrays, entries)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._remove_all_but(1):
                raise
            write_checkpoint(path, arrays, entries)
        self._remove_all_but(self.keep)

    def newest(self, note: Callable[[str], None]) -> RunState:
        """Read the newest undamaged state; call ``note`` with a text on each damaged one.

        Raises:
            RunError: none can be read, or the newest is of an unknown version. Starting over would discard
                the work of the run.
        """
        reason = f"There is no state in {self.directory}."
        for number, (_, path) in enumerate(reversed(self._files())):
            if number:
                note(f"{reason} The state before it is used instead")
            try:
                return read_state(path)
            except CheckpointError as error:
                reason = str(error)
        raise RunError(f"{reason} No other state is left; restore one in {self.directory}, or name another folder")

    def newest_in_words(self) -> str:
        """Name the state that a run would resume from, for an error message."""
        files = self._files()
        return f"the last good state is {files[-1][1]}" if files else "no state has been saved yet"


class FullCheckpoints(_NumberedFiles):
    """The newest ``keep`` full checkpoints of a run, named ``{prefix}-{epoch}_{step in the epoch}.ckpt``.

    Each holds all parameters and the optimizer's state, so that another run can begin with it.

    Args:
        directory: the folder, made if missing.
        prefix: the beginning of the files' names.
        keep: how many stay, at least 1.

    Raises:
        OSError: the folder can't be made.
    """

    def __init__(self, directory: Path, prefix: str, keep: int):
        make_folder(directory)
        remove_leftovers(directory, is_only_writer=True)
        super().__init__(directory, rf"{re.escape(prefix)}-(\d{{1,18}})_\d{{1,18}}\.ckpt", keep)
        self.prefix = prefix

    def save(self, epoch: int, step_in_epoch: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the checkpoint of an epoch's end, and remove the oldest beyond ``keep``.

        Args:
            epoch: number of the epoch.
            step_in_epoch: number of steps in it, for the file's name.
            arrays: name -> value of every parameter.

        Raises:
            OSError: the file can't be written.
        """
        write_checkpoint(self.directory / f"{self.prefix}-{epoch}_{step_in_epoch}.ckpt", arrays, {_EPOCH: epoch})
        self._remove_all_but(self.keep)


def read_state(path: Path) -> RunState:
    """Read a state from a file.

    Raises:
        CheckpointError: the file is missing, damaged, or of another kind.
        RunError: it is of an unknown version.
    """
    arrays = read_checkpoint(path)
    try:
        values = json.loads(str(arrays.pop(_VALUES).item()))
    except (KeyError, ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is not the state of a run.")
    try:
        return RunState(arrays, STATE.content_of(values), path)
    except ValueError as error:
        raise RunError(f"{path} can't be used ({error}); otherwise begin a new run with another --out") from None


def read_full_checkpoint(path: Path, source: str) -> tuple[dict[str, np.ndarray], int]:
    """Read a full checkpoint of stage 1.

    Args:
        path: the file.
        source: what an error calls it.

    Returns:
        The arrays by name; and the epoch after which they were written.

    Raises:
        CheckpointError: the file can't be read, or is not a full checkpoint.
    """
    arrays = read_checkpoint(path)
    epoch = arrays.pop(_EPOCH, None)
    if epoch is None or epoch.shape or epoch.dtype.kind != "i" or not 0 < int(epoch) < 1 << 31:
        raise CheckpointError(f"{source} is not a full checkpoint of stage 1")
    return arrays, int(epoch)


def check_finite(arrays: Mapping[str, np.ndarray], step: int, constants: Collection[str] = ()) -> None:
    """Check that all numbers are finite: a diverged training must not displace good snapshots and states.

    Args:
        arrays: name -> array.
        step: number of steps made, for the error.
        constants: names of arrays that may have numbers that are not finite.

    Raises:
        DivergedError: a parameter, which the message names, has a number that is not finite.
    """
    for name, value in arrays.items():
        if name not in constants and value.dtype.kind == "f" and not np.isfinite(value).all():
            raise DivergedError(f"after step {step} {name!r} has numbers that are not finite: the training diverged")
