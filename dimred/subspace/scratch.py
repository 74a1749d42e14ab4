"""The unfinished result beside ``pca_mat.npy``: what a killed run had reached, for the next run to go on from."""

import fcntl
import io
import json
import os
import shutil
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from dimred.errors import ConfigError
from dimred.files.atomic import atomic_write, remove_leftovers

__all__ = ["Scratch"]


_LOCK = "lock"


class Scratch:
    """A folder ``OUT.unfinished`` that one process holds at a time.

    It carries a state, which is only taken up by the same job: same snapshots (names, steps, sizes, times,
    inodes), same layout, same options. The state of any other job is discarded.

    Args:
        out: the result's path.
        job: what the result depends on, as plain JSON values.

    Raises:
        ConfigError: another process is at work on the same result.
    """

    def __init__(self, out: Path, job: Any) -> None:
        self.directory = out.with_name(out.name + ".unfinished")
        self.components = self.directory / "components.npy"
        self.mean = self.directory / "mean.f32"
        self.metadata = self.directory / "metadata.h5"
        self._state = self.directory / "state.npz"
        self._job = json.dumps(job, sort_keys=True)
        self._lock: int | None = None

    def __enter__(self) -> "Scratch":
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigError(
                f"Another process is computing {self.directory.name.removesuffix('.unfinished')} in "
                f"{self.directory.parent}. Wait for it, or give another --out."
            ) from None
        remove_leftovers(self.directory)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)

    @property
    def is_empty(self) -> bool:
        """Whether nothing but the lock is in the folder."""
        return [path.name for path in self.directory.iterdir()] == [_LOCK]

    def load(self) -> dict[str, np.ndarray]:
        """The arrays that this job saved last; empty when it starts afresh."""
        arrays = self.load_any()
        return arrays if str(arrays.pop("job", "")) == self._job else {}

    def load_any(self) -> dict[str, np.ndarray]:
        """The arrays that any job saved last, and which job."""
        try:
            # From memory: np.load leaves a damaged file open.
            with np.load(io.BytesIO(self._state.read_bytes()), allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
            return {}

    def save(self, phase: str, **arrays: Any) -> None:
        """Replace the saved state, whole or not at all.

        While the work goes on, the state is not flushed to the disk: one that a power cut has spoilt is found by its
        checksums, and the work starts afresh.
        """
        buffer = io.BytesIO()
        np.savez(buffer, job=np.array(self._job), phase=np.array(phase), **arrays)
        atomic_write(self._state, buffer.getvalue(), durable=phase == "publish")

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.directory, ignore_errors=True)
