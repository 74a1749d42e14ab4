"""Read ``metrics.jsonl``, one JSON object a line, and format metrics.

An ``accuracy`` is a fraction, and shown in percent; any other metric is shown as it is.
"""

import json
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


ACCURACY = "accuracy"


def metric_text(name: str, value: float, decimals: int = 2) -> str:
    """Format a metric's value: accuracy in percent with ``decimals`` decimals, others with four significant digits."""
    return f"{100 * value:.{decimals}f} %" if name == ACCURACY else f"{value:.4g}"


def metric_axis(name: str) -> tuple[str, float]:
    """Return an axis label, and the factor to scale values with."""
    return (f"{name}, %", 100.0) if name == ACCURACY else (name, 1.0)


def loss_text(loss: float | None) -> str:
    """Format the loss of a record; "nan" if it is None, which stands for a loss that was not finite."""
    return "nan" if loss is None else f"{loss:.4f}"
