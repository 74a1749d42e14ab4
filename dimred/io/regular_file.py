"""Open the files that dimred reads, if they are files: reading a named pipe would wait for ever.

``tests/io/test_regular_file.py`` holds that no other module opens a file for reading. A library that opens a path
itself, such as MindSpore's reader of images, gets it after ``check_regular``.
"""

import os
import stat
from io import BufferedReader

_KINDS = {
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


class NotRegularError(OSError):
    """A path leads to something other than a regular file; ``strerror`` says to what."""

    def __init__(self, path: str | os.PathLike[str], mode: int) -> None:
        super().__init__()
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        self.filename = os.fspath(path)
        self.strerror = f"it is {kind}, not a file"

    def __str__(self) -> str:
        return str(self.strerror)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Check that a path leads to a regular file, directly or through links; the file is not opened.

    Raises:
        NotRegularError: it leads to something else.
        OSError: it leads nowhere, or can't be looked at.
    """
    _check_mode(path, os.stat(path))  # noqa: PTH116 - a merge opens each tensor, and a Path would cost as much again


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading in binary, and never wait for another process.

    Raises:
        NotRegularError, OSError: as ``check_regular``; or it can't be opened.
    """
    return open(path, "rb", opener=_open)


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file; errors are as for ``open_regular``."""
    with open_regular(path) as file:
        return file.read()


def _open(path: str, flags: int) -> int:
    check_regular(path)  # some devices act when they are opened
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _check_mode(path, os.fstat(descriptor))  # something else may have taken its place meanwhile
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_mode(path: str | os.PathLike[str], status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(path, status.st_mode)
