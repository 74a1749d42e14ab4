"""Files that appear whole or not at all."""

import errno
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

__all__ = [
    "atomic_write",
    "describe_os_error",
    "open_atomic",
    "remove_leftovers",
    "retry",
    "sync_directory",
    "temporary_name",
]

_HOST = re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())[:32] or "host"
_LEFTOVER = re.compile(r"\.writing-(?P<host>[A-Za-z0-9]+)-(?P<pid>\d+)-[0-9a-f]{8}\.tmp")


def temporary_name() -> str:
    """A file name nobody else uses, which tells whose it is: host and process stand in it.

    It does not contain the name of the target, which may already be as long as the file system allows.
    """
    return f".writing-{_HOST}-{os.getpid()}-{secrets.token_hex(4)}.tmp"


@contextmanager
def open_atomic(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open ``path`` for writing so that it is seen whole, or not at all, or as it was before.

    The bytes go to a temporary file in the same folder, which is flushed to the disk and renamed when the
    block ends without an error; then the folder's entry is flushed too. With an error, the temporary file is
    removed.

    Args:
        durable: wait for the disk. Without it a power cut (no mere kill) may leave an empty or older file.

    Raises:
        OSError: the folder does not exist, is not writable, or is full.
    """
    target = Path(path)
    temporary = target.parent / temporary_name()
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException as error:
        with suppress(OSError):  # of a disk that became read-only, for example; the first error is the one to tell
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(target)  # what somebody wanted to write, not the temporary name or nothing
        raise
    if durable:
        sync_directory(target.parent)


def atomic_write(path: str | os.PathLike[str], data: bytes | str, *, durable: bool = True) -> None:
    """Write ``data`` (text as UTF-8) to ``path``, whole or not at all."""
    with open_atomic(path, durable=durable) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """Flush a folder's entries to the disk: without it a rename may be lost when the power fails."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(directory: str | os.PathLike[str]) -> None:
    """Remove the temporary files that processes of this host, now dead, left in ``directory``."""
    for path in Path(directory).glob(".writing-*.tmp"):
        match = _LEFTOVER.fullmatch(path.name)
        if match and match["host"] == _HOST and not _is_alive(int(match["pid"])):
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_Result = TypeVar("_Result")
_WAITS_SECONDS = (1.0, 5.0, 20.0)
# Errors that pass: a network disk that is away for a moment, a full disk that somebody clears.
_PASSING = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EBUSY, errno.ENOSPC, errno.EDQUOT}


def retry(action: Callable[[], _Result], wait: Callable[[float], None] = time.sleep) -> _Result:
    """Do it; where the disk fails in a way that may pass, wait and do it again, three times.

    Raises:
        OSError: the last one.
    """
    for pause in _WAITS_SECONDS:
        try:
            return action()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            print(f"{describe_os_error(error)}; trying again in {pause:.0f} s", flush=True)
            wait(pause)
    return action()


def describe_os_error(error: OSError) -> str:
    """The file and the system's reason, for a message."""
    why = os.strerror(error.errno) if error.errno else str(error)
    return f"{error.filename}: {why}" if error.filename else why
