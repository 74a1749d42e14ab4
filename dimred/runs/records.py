"""Write metrics as JSON lines, one object a line, during the run, and pass them to listeners."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import RunError
from dimred.io.atomic import flush_to_disk, open_atomic, retry
from dimred.io.regular_file import open_regular
from dimred.run_files.metrics_file import finite

_log = logging.getLogger(__name__)

Record = dict[str, Any]
Mark = dict[str, Any]
"""The length in ``bytes`` that a metrics file had when a state was saved, and the ``sha256`` of these bytes."""
_PART = 1 << 24  # bytes read at once
_LONGEST_RECORD = 1 << 20  # bytes written at once


class MetricsLog:
    """A ``.jsonl`` file of records, each flushed at once; numbers that are not finite are written as null.

    Args:
        path: the file.
        listeners: called with each record, as ``read_metrics`` will return it; at the end their ``close`` is called, if
            they have one. One that fails is not called again, and the run continues.
    """

    def __init__(self, path: Path, listeners: Sequence[Callable[[Record], object]] = ()) -> None:
        self._path = path
        # Updated at each write: rereading the file for each mark would take time quadratic in the run's length.
        self._n_bytes = 0
        self._digest = hashlib.sha256()
        for part in _parts(path):
            self._count(part)
        self._file = path.open("ab", buffering=_LONGEST_RECORD)
        self._listeners = list(listeners)

    def write(self, **record: Any) -> Record:
        """Append one record, and return it as ``read_metrics`` will.

        Raises:
            OSError: the file can't be written; the error names it.
        """
        finite_record = {key: finite(value) for key, value in record.items()}
        line = json.dumps(finite_record, allow_nan=False).encode() + b"\n"
        self._file.write(line)
        self._count(line)
        retry(self._flush)
        for listener in list(self._listeners):
            self._call(listener, listener, deepcopy(finite_record))  # the listener may change its copy
        return finite_record

    def _count(self, part: bytes) -> None:
        self._n_bytes += len(part)
        self._digest.update(part)

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
        """Flush to disk, and return the mark of the current content, for ``cut_metrics``."""
        self._flush()
        flush_to_disk(self._file.fileno(), self._path)
        return {"bytes": self._n_bytes, "sha256": self._digest.hexdigest()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a record that could not be written; ``write`` raised this error before
            self._file.close()
        for listener in list(self._listeners):
            self._call(listener, getattr(listener, "close", lambda: None))


def read_beginning(path: Path, mark: Mark) -> Iterator[bytes]:
    """Yield a metrics file in chunks, up to a mark; the file may be missing, or several GB.

    Raises:
        RunError: after the last chunk, if the file is too short, or its bytes have changed.
    """
    n_bytes = 0
    digest = hashlib.sha256()
    for part in _parts(path, mark["bytes"]):
        n_bytes += len(part)
        digest.update(part)
        yield part
    if mark != {"bytes": n_bytes, "sha256": digest.hexdigest()}:
        raise RunError(
            f"{path} was cut or changed after the run wrote it; restore it, or begin a new run with another --out"
        )


def cut_metrics(path: Path, mark: Mark, ranks: Ranks = ALONE) -> None:
    """Truncate a metrics file to its length at a mark; the run writes the rest again.

    Args:
        path: the file.
        mark: see ``MetricsLog.mark``.
        ranks: rank 0's file is cut, and every other rank gets a copy of it, because that rank's host may be new.

    Raises:
        RunError: rank 0's file was cut or changed (see ``read_beginning``); the other ranks raise a DimredError.
    """
    parts = read_beginning(path, mark)
    with open_atomic(path) as file:
        while part := ranks.broadcast_bytes(ranks.run_on_rank_zero(lambda: next(parts, b"")) or b""):
            file.write(part)


def _parts(path: Path, n_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the first ``n_bytes`` of the file, by default all of it; nothing if it is missing or empty."""
    left = path.stat().st_size if path.exists() else 0
    if left and n_bytes is not None:
        left = n_bytes
    if left:
        with open_regular(path) as file:
            while part := file.read(min(left, _PART)):
                left -= len(part)
                yield part
