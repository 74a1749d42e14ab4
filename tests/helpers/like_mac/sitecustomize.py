"""Make a Python on Linux lack what macOS lacks, and have its full flush.

With ``LIKE_MAC=1 PYTHONPATH=tests/helpers/like_mac`` in the environment,
Python imports this file by its name when it starts, also in the processes that a command starts. It can't show another
processor, file systems that ignore case, or how macOS's own calls behave. Each full flush is noted in the file that
``LIKE_MAC_FLUSHES`` names, if it names one.
"""

import ctypes
import fcntl
import io
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

_GONE = (
    "O_TMPFILE",
    "copy_file_range",
    "eventfd",
    "fdatasync",
    "memfd_create",
    "pidfd_open",
    "posix_fadvise",
    "posix_fallocate",
    "sched_getaffinity",
    "sched_setaffinity",
    "splice",
)
_ASK_MACOS_OTHERWISE = {"psutil", "threadpoolctl"}  # packages that choose their way by the system's name
_F_FULLFSYNC = 51  # of macOS; no command of Linux has this number


def _without_proc(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(path: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith("/proc/"):
            packages = {frame.f_globals["__name__"].partition(".")[0] for frame, _ in traceback.walk_stack(None)}
            if not packages & _ASK_MACOS_OTHERWISE:
                raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *arguments, **options)

    return called


class _Library(ctypes.CDLL):
    """The C library, with macOS's call that tells the boot in place of Linux's file."""

    def __getattr__(self, name: str) -> Any:
        if name == "prctl":
            raise AttributeError("dlsym: symbol not found: prctl")
        return super().__getattr__(name)

    @staticmethod
    def sysctlbyname(name: bytes, text: Any, size: Any, new_text: None, new_size: Any) -> int:
        if name != b"kern.bootsessionuuid":
            return -1
        text.value = b"6F2A1C80-0000-4000-8000-000000000001"
        return 0


_socketpair, _fcntl = socket.socketpair, fcntl.fcntl


def _pair(family: int = socket.AF_UNIX, kind: int = socket.SOCK_STREAM, protocol: int = 0) -> Any:
    if kind == socket.SOCK_SEQPACKET:
        raise OSError(43, "Protocol not supported")
    return _socketpair(family, kind, protocol)


def _control(descriptor: Any, command: int, argument: Any = 0) -> Any:
    if command != _F_FULLFSYNC:
        return _fcntl(descriptor, command, argument)
    if "LIKE_MAC_FLUSHES" in os.environ:
        with open(os.environ["LIKE_MAC_FLUSHES"], "a") as notes:
            notes.write("flush\n")
    return os.fsync(descriptor)


if os.environ.get("LIKE_MAC"):
    for _name in _GONE:
        if hasattr(os, _name):
            delattr(os, _name)
    io.open = open = _without_proc(io.open)  # type: ignore[assignment]
    __builtins__["open"] = open  # type: ignore[index]
    os.open = _without_proc(os.open)
    socket.socketpair, ctypes.CDLL = _pair, _Library  # type: ignore[misc]
    fcntl.fcntl, fcntl.F_FULLFSYNC = _control, _F_FULLFSYNC  # type: ignore[attr-defined]
    multiprocessing.set_start_method("spawn")
