"""Read ``metrics.jsonl``, which has one JSON object a line, and replace numbers that JSON can't hold."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dimred.errors import RunError, shown
from dimred.io.regular_file import open_regular


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read all records of a metrics file, in order; see ``each_record``."""
    return list(each_record(path))


def each_record(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a metrics file, in order, without a last line that is still being written.

    The file is read a line at a time, because the search of a long run may not fit into memory.

    Raises:
        RunError: the file can't be read, or a line is not a record.
    """
    try:
        with open_regular(path) as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield _record(line, f"{path} is damaged at line {number}")
    except OSError as error:
        raise RunError(f"{path} can't be read ({error.strerror or error}); name the metrics.jsonl of a run") from None


def numbered_records(path: Path, key: str) -> Iterator[dict[str, Any]]:
    """Yield a run's records; each must have a number under ``key``, its step or epoch.

    Raises:
        RunError: the file can't be read, or a record has no such number.
    """
    for line, record in enumerate(each_record(path), start=1):
        number = record.get(key)
        if type(number) is not int or number < 1:
            why = f"its {key} is {shown(number)}; it must be a whole number above 0"
            raise RunError(f"{path} is damaged at line {line} ({why}); remove the line")
        yield record


def _record(line: bytes, fault: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("it holds no keys")
    except (ValueError, RecursionError) as error:
        raise RunError(f"{fault} ({str(error)[:200]}); remove the line") from None
    return record


def loss_text(loss: float | None) -> str:
    """Format the loss of a record; "nan" if it is None, which stands for a loss that was not finite."""
    return "nan" if loss is None else f"{loss:.4f}"


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON text, with null for each number that is not finite."""
    return json.dumps(finite(value), indent=indent, allow_nan=False)


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, also inside dicts and lists, because JSON can't hold them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value
