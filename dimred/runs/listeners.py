"""Listeners to a run's records: TensorBoard's event files, and the user's own listener."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dimred.errors import ConfigError, shown
from dimred.factories import call_factory
from dimred.runs.records import Record

_SECONDS_BETWEEN_FLUSHES = 10.0


def make_callback(name: str, folder: Path) -> Callable[[Record], object]:
    """Make a user's own listener by calling its factory, ``package.module:factory``, with the run's folder.

    Raises:
        ConfigError: the factory can't be found, fails, or does not return a function.
    """
    listener = call_factory(name, folder, key="callback")
    if not callable(listener):
        raise ConfigError(
            f"callback is {name!r}, which returned {shown(listener)}; it must return a function that takes a record"
        )
    return listener


class TensorBoard:
    """A listener that writes every number of a record at its ``step`` into TensorBoard's event files.

    ``SummaryWriter`` is not used: its thread dies on a full disk, and the run would wait for it for ever.

    Args:
        folder: folder for the files.
        last_record: the run's last record, or None; any events that a killed run left for later steps are hidden.
    """

    def __init__(self, folder: Path, last_record: Record | None):
        # tensorboardX may be missing. MindSpore's own writer forks, and can wait for ever, too.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import scalar

        self._event = Event
        self._scalar = scalar
        self._flushed_at = -math.inf
        first = 0 if last_record is None else int(last_record["step"]) + 1
        # The suffix distinguishes two files created within the same second.
        folder.mkdir(exist_ok=True)
        self._events = EventsWriter(str(folder / "events"), f".{first}")
        if first:
            self._write(first, session_log=SessionLog(status=SessionLog.START))
        self.close = self._events.close

    def __call__(self, record: Record) -> None:
        for name, value in numbers(record):
            self._write(int(record["step"]), summary=self._scalar(name, value))
        if time.monotonic() - self._flushed_at > _SECONDS_BETWEEN_FLUSHES:  # each waits for the disk
            self._events.flush()
            self._flushed_at = time.monotonic()

    def _write(self, step: int, **content: Any) -> None:
        self._events.write_event(self._event(step=step, wall_time=time.time(), **content))


def numbers(record: Record, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in a record by name; a number in a nested object is named KEY/NAME."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + key, value
