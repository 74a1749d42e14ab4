"""Write metrics as JSON lines, one object a line, during the run, and pass them to listeners such as TensorBoard."""

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, RunError, shown
from dimred.io.atomic import atomic_write, flush_to_disk, retry
from dimred.io.metrics_file import finite
from dimred.models.factory import call_factory

_log = logging.getLogger(__name__)

Record = dict[str, Any]
Mark = dict[str, Any]
"""What was in a metrics file when a state was saved: its length in ``bytes``, and the ``sha256`` of these."""
_LONGEST_RECORD = 1 << 20  # bytes that are written as one
_SECONDS_BETWEEN_FLUSHES = 10.0  # of TensorBoard's files


class MetricsLog:
    """A ``.jsonl`` file of records, each flushed at once; numbers that are not finite are written as null.

    Args:
        path: the file.
        listeners: called with each record, as ``read_metrics`` will return it; at the end their ``close`` is called, if
            they have one. One that fails is not called again, and the run goes on.
    """

    def __init__(self, path: Path, listeners: Sequence[Callable[[Record], object]] = ()):
        self._path = path
        self._file = path.open("ab", buffering=_LONGEST_RECORD)
        self._listeners = list(listeners)

    def write(self, **record: Any) -> Record:
        """Append one record, and return it as ``read_metrics`` will.

        Raises:
            OSError: the file, which the error names, can't be written.
        """
        finite_record = {key: finite(value) for key, value in record.items()}
        self._file.write(json.dumps(finite_record, allow_nan=False).encode() + b"\n")
        retry(self._flush)
        for listener in list(self._listeners):
            self._call(listener, listener, deepcopy(finite_record))  # which is the listener's own
        return finite_record

    def _flush(self) -> None:
        """Write the buffer to the file; what does not fit on a full disk stays in the buffer."""
        try:
            self._file.flush()
        except OSError as error:
            error.filename = str(self._path)
            raise

    def _call(self, listener: Callable[[Record], object], method: Callable[..., object], *arguments: Record) -> None:
        try:
            method(*arguments)
        except Exception as error:
            _log.info(f"{listener!r} failed ({type(error).__name__}: {error}), and gets no more records")
            self._listeners.remove(listener)

    def mark(self) -> Mark:
        """Flush to disk, and return what is in the file, for ``cut_metrics``."""
        flush_to_disk(self._file.fileno(), self._path)
        return _mark_of(self._path.read_bytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a record that could not be written; ``write`` raised this error before
            self._file.close()
        for listener in list(self._listeners):
            self._call(listener, getattr(listener, "close", lambda: None))


def make_callback(name: str, folder: Path) -> Callable[[Record], object]:
    """Make a user's own listener.

    Args:
        name: its factory, ``package.module:factory``.
        folder: the run's folder, with which the factory is called.

    Raises:
        ConfigError: the factory can't be found, fails, or does not return a function.
    """
    listener = call_factory(name, folder, key="callback")
    if not callable(listener):
        raise ConfigError(
            f"callback is {name!r}, which returned {shown(listener)}; it must return a function of a record"
        )
    return listener


class TensorBoard:
    """A listener that writes every number of a record at its ``step`` into TensorBoard's event files.

    It does not use ``SummaryWriter``, whose thread dies on a full disk, so that the run would wait for it for ever.

    Args:
        folder: folder of the files.
        records: the run's records so far; events of later steps, which a killed run has left, are hidden.
    """

    def __init__(self, folder: Path, records: Sequence[Record]):
        from tensorboardX.event_file_writer import EventsWriter  # MindSpore's own forks, and can wait for ever, too
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import scalar

        self._event, self._scalar, self._flushed_at = Event, scalar, -math.inf
        first = int(records[-1]["step"]) + 1 if records else 0
        # The suffix keeps two files that are begun within one second apart.
        folder.mkdir(exist_ok=True)
        self._events = EventsWriter(str(folder / "events"), f".{first}")
        if first:
            self._write(first, session_log=SessionLog(status=SessionLog.START))
        self.close = self._events.close

    def __call__(self, record: Record) -> None:
        for name, value in _numbers(record):
            self._write(int(record["step"]), summary=self._scalar(name, value))
        if time.monotonic() - self._flushed_at > _SECONDS_BETWEEN_FLUSHES:  # each waits for the disk
            self._events.flush()
            self._flushed_at = time.monotonic()

    def _write(self, step: int, **content: Any) -> None:
        self._events.write_event(self._event(step=step, wall_time=time.time(), **content))


def _numbers(record: Record, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record by name; those of an object within it are named KEY/NAME."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + key, value


def _mark_of(content: bytes) -> Mark:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def read_beginning(path: Path, mark: Mark) -> bytes:
    """Read the beginning of a metrics file, up to a mark.

    Args:
        path: the file, which need not exist.
        mark: see ``MetricsLog.mark``.

    Raises:
        RunError: the file is shorter, or another byte is in it.
    """
    content = path.read_bytes()[: mark["bytes"]] if path.exists() else b""
    if _mark_of(content) != mark:
        raise RunError(
            f"{path} was cut or changed after the run wrote it; restore it, or begin a new run with another --out"
        )
    return content


def cut_metrics(path: Path, mark: Mark | None, ranks: Ranks = ALONE) -> None:
    """Truncate a metrics file to the length it had at a mark; the resumed run writes the rest again.

    Args:
        path: the file.
        mark: see ``MetricsLog.mark``; None for a new run, whose file is empty.
        ranks: rank 0's file is cut, and every other rank gets a copy of it, as its host may be new.

    Raises:
        RunError: rank 0's file was cut or changed, see ``read_beginning``; the other ranks raise a DimredError.
    """
    beginning = None if mark is None else ranks.run_on_rank_zero(lambda: read_beginning(path, mark))
    atomic_write(path, ranks.broadcast_bytes(beginning or b""))
