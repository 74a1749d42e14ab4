"""Metrics as JSON lines: one object a line, appended as it happens."""

import hashlib
import json
import math
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dimred.errors import RunError
from dimred.files.atomic import atomic_write
from dimred.files.metrics_file import ACCURACY, read_metrics


class MetricsLog:
    """Appends records to a ``.jsonl`` file, each flushed at once. Numbers that are not finite are written as null.

    Args:
        path: of the file.
        tensorboard: a folder in which TensorBoard's event files get every number of a record at its ``step``; None for
            none. Where the file has records already, events of later steps, of a run that was killed, are hidden.
    """

    def __init__(self, path: Path, tensorboard: Path | None = None):
        self._path = path
        self._file = path.open("a", encoding="utf-8")
        self._events: Any = None
        if tensorboard is not None:
            from tensorboardX import (
                SummaryWriter,  # MindSpore's SummaryRecord forks, and can wait for its pool for ever
            )

            records = read_metrics(path)
            first = int(records[-1]["step"]) + 1 if records else 0
            # The suffix keeps two files that are begun within one second apart.
            self._events = SummaryWriter(str(tensorboard), purge_step=first or None, filename_suffix=f".{first}")

    def write(self, **record: Any) -> dict[str, Any]:
        """Append one record; returns it as ``read_metrics`` will."""
        kept = {key: finite(value) for key, value in record.items()}
        self._file.write(json.dumps(kept, allow_nan=False) + "\n")
        self._file.flush()
        if self._events is not None:
            for key, value in kept.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    self._events.add_scalar(key, value, int(kept["step"]))
        return kept

    def mark(self) -> dict[str, Any]:
        """Where the file ends now, for ``cut_metrics``; what was written is on the disk by then."""
        os.fsync(self._file.fileno())
        written = self._path.read_bytes()
        return {"lines": written.count(b"\n"), "sha256": hashlib.sha256(written).hexdigest()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


def cut_metrics(path: Path, mark: dict[str, Any] | None, *, own: bool = True) -> None:
    """Cut a metrics file where it ended when ``mark`` was made: the run goes on from there, and writes the rest again.

    Args:
        path: the file.
        mark: None for a run that begins: then nothing may stand there.
        own: whether the mark was made of this file, not of another rank's, which has as many lines.

    Raises:
        RunError: what stands before that place was changed since.
    """
    if mark is None:
        path.unlink(missing_ok=True)
        return
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    kept = b"".join(lines[: mark["lines"]])
    if own and hashlib.sha256(kept).hexdigest() != mark["sha256"]:
        raise RunError(f"{path} was changed or cut after the run wrote it; restore it, or begin in another folder")
    atomic_write(path, kept)


def finite(value: Any) -> Any:
    """The value as JSON can hold it: None for a number that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value


def metric_line(name: str, value: float | None) -> str:
    """The line that a run ends with: ``{'Accuracy': 0.88}``, or another metric by its own name."""
    return str({"Accuracy" if name == ACCURACY else name: value})
