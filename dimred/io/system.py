"""What the operating system offers: Linux's way where it is available, and a plain way elsewhere, as on macOS.

Which way is taken depends on what this Python has, never on the system's name.
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

# Errors of file systems that lack an operation, such as some on network disks and in user space.
WITHOUT_SUPPORT = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT_ID_OF_MACOS = b"kern.bootsessionuuid"
_TIED = Path(__file__).with_name("tied.py")


def n_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory_bytes() -> int:
    """Return the most memory that this process has held so far."""
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts this field in bytes, Linux in KiB
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def boot_id() -> str | None:
    """Return an identifier of this boot of the machine, the same in all its containers; None if it has none."""
    with contextlib.suppress(OSError):
        return _short(_BOOT_ID.read_bytes())
    return _boot_id_of_macos()


def _boot_id_of_macos() -> str | None:
    with contextlib.suppress(AttributeError):  # another system lacks the function
        text = ctypes.create_string_buffer(64)
        size = ctypes.c_size_t(64)
        if ctypes.CDLL(None).sysctlbyname(_BOOT_ID_OF_MACOS, text, ctypes.byref(size), None, ctypes.c_size_t(0)) == 0:
            return _short(text.value)
    return None


def _short(identifier: bytes) -> str:
    return hashlib.sha256(identifier).hexdigest()[:16]


def free_bytes(disk: int | os.PathLike[str]) -> int | None:
    """Return how many bytes are free on the disk of an open descriptor or an existing path; None if unknown.

    Some file systems in user space, such as gcsfuse and s3fs, answer with zeros or not at all.
    """
    try:
        total, _, free = shutil.disk_usage(disk)
    except OSError:
        return None
    return free if total else None


def reserve(descriptor: int, n_bytes: int) -> None:
    """Give an open file its full length, and reserve room for it where the file system can do that.

    Elsewhere the disk is only asked how much is free.

    Args:
        descriptor: the file, open for writing.
        n_bytes: its length, above 0.

    Raises:
        OSError: there is too little room, or the file would be too large.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, n_bytes)
        except OSError as error:
            if error.errno not in WITHOUT_SUPPORT:
                raise
        else:
            return
    free = free_bytes(descriptor)
    if free is not None and free < n_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, n_bytes)


def anonymous_file() -> IO[bytes]:
    """Open an empty file that has no name: in memory, or else in the folder for temporary files.

    Raises:
        OSError: the process has too many open files, or that folder is full or not writable.
    """
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # raised if the kernel lacks it
            return os.fdopen(os.memfd_create("dimred"), "w+b")
    return tempfile.TemporaryFile()


_FULL_FLUSH = getattr(fcntl, "F_FULLFSYNC", None)  # only macOS has it; fsync does not reach the disk there


def _flush_fully(descriptor: int, command: int) -> bool:
    """Flush an open file or folder by ``fcntl`` with ``command``; return False if its file system lacks that."""
    try:
        fcntl.fcntl(descriptor, command)
    except OSError as error:
        if error.errno not in {errno.ENOTTY, *WITHOUT_SUPPORT}:
            raise
        return False
    return True


def flush(descriptor: int, *, is_growing: bool = False) -> None:
    """Flush an open file or folder to the disk itself, past the disk's own memory.

    Args:
        descriptor: the file or folder.
        is_growing: whether more will be written and flushed later; then the bytes are flushed, but metadata such as the
            time of the last change may not be.

    Raises:
        OSError: the disk fails or is full, or its file system can't flush; that is an error of ``WITHOUT_SUPPORT``.
    """
    if _FULL_FLUSH is not None and _flush_fully(descriptor, _FULL_FLUSH):
        return
    if is_growing and hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def start_tied(
    command: Sequence[str | os.PathLike[str]],
    number: signal.Signals,
    *,
    ignored: Collection[int] = (),
    pass_fds: Collection[int] = (),
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start a program, in its own session, that gets a signal when this process ends, however that ends.

    On Linux the kernel sends the signal when the *thread* that started the program ends, so start it from a thread that
    lasts. Elsewhere a small process beside the program watches this one, and signals the program's process group.

    Args:
        command: the program and its arguments; the process that is returned becomes the program.
        number: the signal.
        ignored: signals that the program ignores.
        pass_fds, options: as for ``subprocess.Popen``.

    Raises:
        OSError: no process can be started.
    """
    lifeline = -1 if hasattr(ctypes.CDLL(None), "prctl") else _lifeline()
    signals = ",".join(str(int(ignored_signal)) for ignored_signal in ignored)
    tied = [sys.executable, "-I", "-S", _TIED, str(os.getpid()), str(lifeline), str(int(number)), signals, *command]
    passed = [*pass_fds, *([] if lifeline < 0 else [lifeline])]
    return subprocess.Popen(tied, start_new_session=True, pass_fds=passed, **options)


@cache
def _lifeline() -> int:
    """Return the reading end of a pipe; it reaches end of file when this process, the only writer, ends."""
    reader, _ = os.pipe()
    return reader
