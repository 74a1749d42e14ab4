"""The unfinished result beside ``pca_mat.npy``: what a killed run had reached, for the next run to go on from."""

import io
import json
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from dimred.files.atomic import atomic_write, remove_leftovers
from dimred.files.lock import FolderLock
from dimred.files.run_names import LOCK, UNFINISHED


class Scratch(FolderLock):
    """A folder ``OUT.unfinished``, which is made where it is missing and held as long as the block lasts.

    It carries a state, which only the same job takes up: same snapshots (names, steps, sizes, times, inodes), same
    layout, same options. The state of any other job is ignored.

    Args:
        out: the result's path.
        job: what the result depends on, as plain JSON values.

    Raises:
        RunError: another process is at work on the same result.
    """

    def __init__(self, out: Path, job: Any) -> None:
        self.directory = out.with_name(out.name + UNFINISHED)
        super().__init__(self.directory, f"out is {str(out)!r}")
        self.components = self.directory / "components.npy"
        self.mean = self.directory / "mean.f32"
        self.metadata = self.directory / "metadata.h5"
        self._state = self.directory / "state.npz"
        self.job = json.dumps(job, sort_keys=True)

    def __enter__(self) -> Self:
        super().__enter__()
        remove_leftovers(self.directory)
        return self

    @property
    def is_empty(self) -> bool:
        """Whether nothing but the lock is in the folder."""
        return [path.name for path in self.directory.iterdir()] == [LOCK]

    def load(self) -> dict[str, np.ndarray]:
        """The arrays that this job saved last; empty when it starts afresh."""
        arrays = self.load_any()
        return arrays if str(arrays.pop("job", "")) == self.job else {}

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

        It is flushed to the disk only at the end: a state that a power cut has spoilt is found by its checksums, and
        the work starts afresh.
        """
        buffer = io.BytesIO()
        np.savez(buffer, job=np.array(self.job), phase=np.array(phase), **arrays)
        atomic_write(self._state, buffer.getvalue(), durable=phase == "publish")

    def remove(self) -> None:
        """Remove what is in the folder; then the state, by which a killed removal goes on; then the lock."""
        with suppress(OSError):
            for path in sorted(self.directory.iterdir(), key=lambda path: path == self._state):
                if path.name != LOCK:
                    path.unlink()
        super().remove()
