"""Read ``metrics.jsonl``: one JSON object a line, appended while the run goes on (``dimred.run.metrics`` writes it)."""

import json
from pathlib import Path
from typing import Any

from dimred.errors import RunError


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All records of a metrics file, in order; a last line that is still being written is left out.

    Raises:
        RunError: the file can't be read, or a line is not a record.
    """
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunError(f"{path} can't be read ({error.strerror or error}); name the metrics.jsonl of a run") from None
    return [_record(path, number, line) for number, line in enumerate(lines, start=1)]


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged in line {number} ({str(error)[:200]}); remove the line") from None
    if not isinstance(record, dict):
        raise RunError(f"{path} is damaged in line {number}: it holds no keys; remove the line")
    return record
