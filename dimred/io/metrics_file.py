"""Read ``metrics.jsonl``, which has one JSON object a line, and replace numbers that JSON can't hold."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dimred.errors import RunError


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read all records of a metrics file, in order, without a last line that is still being written.

    Raises:
        RunError: the file can't be read, or a line is not a record.
    """
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunError(f"{path} can't be read ({error.strerror or error}); name the metrics.jsonl of a run") from None
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
            if not isinstance(records[-1], dict):
                raise ValueError("it holds no keys")
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path} is damaged in line {number} ({str(error)[:200]}); remove the line") from None
    return records


def gaps_in_words(records: Sequence[Mapping[str, Any]], key: str, last: int | None = None) -> str | None:
    """Say which records there should be if some are missing or there twice; None if their numbers go up one by one.

    Args:
        records: the records of a run, in the order of the file.
        key: their number, ``step`` or ``epoch``.
        last: the number of the last record, if it is known; then the first one is 1.
    """
    numbers = [record.get(key) for record in records]
    known = [number for number in numbers if isinstance(number, int)]
    first, end = (1, last) if last is not None else (min(known, default=1), max(known, default=0))
    return (
        None
        if numbers == [*range(first, end + 1)]
        else f"does not have each {key} from {first} to {end} once and in order"
    )


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
