"""One run in a folder at a time.

The kernel holds the lock (``flock``), and gives it up when the process is gone, however it ended: a crash leaves
nothing to clean up. The file says who holds it.
"""

import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path
from types import TracebackType

from dimred.errors import RunError

__all__ = ["LOCK", "RunLock"]

LOCK = ".lock"
_LONGEST = 4_096


class RunLock:
    """Holds ``folder/.lock`` as long as the block lasts.

    Args:
        folder: exists.

    Raises:
        RunError: another process holds it; says which.
    """

    def __init__(self, folder: Path):
        self._path = folder / LOCK
        self._descriptor = -1

    def __enter__(self) -> "RunLock":
        while True:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(self._descriptor)
                os.close(self._descriptor)
                raise RunError(
                    f"--out is {str(self._path.parent)!r}, where {holder} is at work; wait for it, end it, or name "
                    "another folder"
                ) from None
            if self._is_the_file():
                break
            os.close(self._descriptor)  # it was removed between opening and locking
        about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(about | {"command": " ".join(sys.argv)[:1000]}).encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def remove(self) -> None:
        """Remove the file, while it is held."""
        self._path.unlink(missing_ok=True)

    def _is_the_file(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False


def _holder(descriptor: int) -> str:
    """Who holds the lock, in words; the file is only a note, and may be half written."""
    try:
        about = json.loads(os.pread(descriptor, _LONGEST, 0))
        return f"process {int(about['pid'])} on {str(about['host'])[:80]} (since {str(about['since'])[:30]})"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "another process"
