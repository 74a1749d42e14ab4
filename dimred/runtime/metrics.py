"""Metrics as JSON lines: one object a line, appended as it happens."""

import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class MetricsLog:
    """Appends records to a ``.jsonl`` file, each flushed at once. Numbers that are not finite are written as null."""

    def __init__(self, path: Path):
        self._file = path.open("a", encoding="utf-8")

    def write(self, **record: Any) -> None:
        """Append one record."""
        finite = {key: _plain(value) for key, value in record.items()}
        self._file.write(json.dumps(finite, allow_nan=False) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All records of a metrics file, in order."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
