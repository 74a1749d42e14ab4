"""Files that appear whole or not at all."""

import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["remove_leftovers", "sync_directory", "temporary_name", "whole_file", "write_whole"]

_HOST = re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())[:32] or "host"
_LEFTOVER = re.compile(r"\.writing-(?P<host>[A-Za-z0-9]+)-(?P<pid>\d+)-[0-9a-f]{8}\.tmp")


def temporary_name() -> str:
    """A file name nobody else uses, which tells whose it is: host and process stand in it.

    It does not contain the name of the target, which may already be as long as the file system allows.
    """
    return f".writing-{_HOST}-{os.getpid()}-{secrets.token_hex(4)}.tmp"


@contextmanager
def whole_file(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[BinaryIO]:
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


def write_whole(path: str | os.PathLike[str], data: bytes | str, *, durable: bool = True) -> None:
    """Write ``data`` (text as UTF-8) to ``path``, whole or not at all."""
    with whole_file(path, durable=durable) as file:
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
