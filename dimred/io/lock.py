"""Lock a folder for one process at a time.

The kernel holds the lock (``flock``) and releases it with the process, so a crash leaves nothing to clean up. The file
only has a note of who holds it.
"""

import fcntl
import os
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from dimred.errors import RunError
from dimred.io.run_names import LOCK


class FolderLock:
    """A lock on a folder, ``folder/.lock``, held as long as the block lasts; a missing folder is made.

    Args:
        folder: to lock.
        what: the argument and its value, for the message: ``--out is '/a/b'``.

    Raises:
        RunError: another process holds the lock; says which, and what is locked.
        OSError: the folder can't be made or written to.
    """

    def __init__(self, folder: Path, what: str) -> None:
        self._path, self._what, self._held = folder / LOCK, what, ExitStack()

    def __enter__(self) -> Self:
        while not self._try_to_lock():
            pass  # the last holder removed the file or the folder meanwhile
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def remove(self) -> None:
        """Remove the lock file, and the folder if nothing else is in it; call it while the lock is held."""
        self._path.unlink(missing_ok=True)
        with suppress(OSError):  # if it holds a result, or the next process's lock
            self._path.parent.rmdir()

    def _try_to_lock(self) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError), ExitStack() as stack:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                note = os.pread(descriptor, 200, 0).decode(errors="replace")
                holder = note if note.startswith("process ") and note.isprintable() else "another process"
                raise RunError(
                    f"{self._what}, where {holder} is at work; wait for it, end it, or name another"
                ) from None
            if os.path.samestat(os.fstat(descriptor), self._path.stat()):
                note = f"process {os.getpid()} on {socket.gethostname()} (since {time.strftime('%Y-%m-%d %H:%M:%S')})"
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, note.encode(), 0)
                self._held = stack.pop_all()
                return True
        return False
