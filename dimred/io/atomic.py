"""Write files and folders atomically, lock a folder, and retry when a disk fails for a moment."""

import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self, TypeVar

from dimred.errors import ConfigError, RunError
from dimred.io.system import WITHOUT_SUPPORT, boot_id, flush

_log = logging.getLogger(__name__)
_LEFTOVER = re.compile(r"\.writing-[0-9a-f]{16}-[0-9a-f]{8}\.tmp")


BOOT = boot_id() or secrets.token_hex(8)


@contextmanager
def open_atomic(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open ``path`` for an atomic write: others see the old content until the new content is complete.

    The bytes go to a temporary file in the same folder, which is flushed to the disk and renamed when the block ends
    without an error; then the folder's entry is flushed too. After an error the temporary file is removed. The
    yielded file's ``name`` is its path, for a library that opens files itself.

    Raises:
        OSError: the folder does not exist, is not writable, or is full.
    """
    target = Path(path)
    with _unfinished(target, partial(Path.touch, exist_ok=False)) as temporary:
        with temporary.open("r+b") as file:
            yield file
        rename(temporary, target)


@contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a folder that appears when it is complete.

    Yields an empty folder beside ``path``, which is renamed to it if the block ends without an error, else removed.

    Raises:
        OSError: the folder exists and is not empty, or its parent does not, is not writable, or is full.
    """
    target = Path(path)
    with _unfinished(target, Path.mkdir) as temporary:
        yield temporary
        rename(temporary, target)


@contextmanager
def _unfinished(target: Path, make: Callable[[Path], object]) -> Iterator[Path]:
    """Make a file or folder beside the target, and lock it inside the block; after an error, remove it.

    The lock is for ``remove_leftovers``. The name does not contain the target's, which may already be as long as the
    file system allows.
    """
    temporary = _unused_name(target.parent)
    with ExitStack() as stack:
        try:
            make(temporary)
            while not _is_locked(temporary, stack):
                temporary = _unused_name(target.parent)
                make(temporary)
            yield temporary
        except BaseException as error:
            discard(temporary)
            if isinstance(error, OSError):
                error.filename = str(target)  # instead of the temporary name
            raise


def _unused_name(folder: Path) -> Path:
    return folder / f".writing-{BOOT}-{secrets.token_hex(4)}.tmp"


def _is_locked(path: Path, stack: ExitStack) -> bool:
    """Lock a new file or folder until the stack is closed; return False if another process had removed it before.

    Where files can't be locked, the file has no lock, and nobody removes it after a kill.
    """
    with suppress(FileNotFoundError):
        descriptor = _opened(path, stack)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def atomic_write(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write ``data`` (text as UTF-8) to ``path``, whole or not at all.

    Raises:
        OSError: as ``open_atomic``.
    """
    with open_atomic(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def rename(path: Path, target: Path) -> None:
    """Flush a file, or a folder and all that is in it, rename it, and flush the folder around it.

    After that, a power failure can't undo the renaming. If the folder can't be flushed, a file or folder that is new
    there gets its old name back, so that the call can be repeated.

    Args:
        path: the file or folder.
        target: its new path, in a folder that exists; a file there, or an empty folder, is replaced.

    Raises:
        OSError: the disk fails or is full, or ``target`` is a folder that is not empty.
    """
    inside = path.rglob("*") if path.is_dir() else ()
    for entry in (*inside, path):
        _flush(entry)
    is_new = not target.exists()
    path.replace(target)
    try:
        _flush(target.parent)
    except OSError:
        if is_new:
            with suppress(OSError):
                target.replace(path)
        raise


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, unless it exists.

    The folder around each new one is flushed, so that a power failure can't take away what is later flushed inside.

    Raises:
        OSError: the path is a file, or the disk fails, is full or is not writable.
    """
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flush_to_disk(descriptor, path)
    finally:
        os.close(descriptor)


def flush_to_disk(descriptor: int, path: Path, *, is_growing: bool = False) -> None:
    """Flush a file or folder to the disk, if the file system can do that.

    Args:
        descriptor: the open file or folder.
        path: its path.
        is_growing: whether more will be written and flushed later; then the bytes are flushed, but not metadata such
            as the time of the last change.

    Raises:
        OSError: the disk fails or is full; its ``filename`` is ``path``.
    """
    try:
        flush(descriptor, is_growing=is_growing)
    except OSError as error:
        if error.errno in WITHOUT_SUPPORT:
            return
        error.filename = str(path)
        raise


def is_temporary(name: str) -> bool:
    """Return whether a name is the temporary name of an unfinished file or folder."""
    return _LEFTOVER.fullmatch(name) is not None


def remove_leftovers(directory: str | os.PathLike[str], *, is_only_writer: bool = False) -> None:
    """Remove the unfinished files and folders of processes that were killed since this machine was started.

    Such a process no longer holds its lock. A process on another machine may hold a lock that can't be seen here, so
    leftovers from other machines, or from before the last start, stay. So do those that can't be removed: in a shared
    folder they may be another user's.

    Args:
        directory: the folder.
        is_only_writer: whether nobody else may write there, as in the folder of a run, which is locked; then all
            leftovers are removed, even after a power failure.
    """
    boot = "*" if is_only_writer else BOOT
    for path in Path(directory).glob(f".writing-{boot}-*.tmp"):
        with suppress(OSError), ExitStack() as stack:
            fcntl.flock(_opened(path, stack), fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)


def _opened(path: Path, stack: ExitStack) -> int:
    """Open a file or folder to lock it; a file is opened for writing too, because NFS requires that."""
    descriptor = os.open(path, os.O_NOFOLLOW | (os.O_RDONLY if path.is_dir() else os.O_RDWR))
    stack.callback(os.close, descriptor)
    return descriptor


def remove(path: Path) -> None:
    """Remove a file or folder, if it exists; what can't be removed inside a folder stays, without an error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Remove a file or folder that nobody needs; if that fails, as on a disk that became read-only, leave it."""
    with suppress(OSError):
        remove(path)


@contextmanager
def writable(argument: str, path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a ConfigError about ``path``, which the user gave as ``argument``."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{argument} is {str(path)!r}, which can't be made or written to ({error.strerror}); make it writable, or "
            "name another folder",
            argument=argument,
        ) from error


LOCK = ".lock"


class FolderLock:
    """A lock on a folder, ``folder/.lock``, held inside a ``with`` block; a missing folder is made.

    The kernel holds the lock (``flock``) and releases it when the process ends, so a crash leaves nothing to clean up.
    The file only notes who holds the lock.

    Args:
        folder: the folder to lock.
        argument: the argument by which the user named the folder, for the message.
        value: its value, if it is not the folder itself.

    Raises:
        RunError: another process holds the lock, and the message names it; or the file system has no locks.
        OSError: the folder can't be made or written to.
    """

    def __init__(self, folder: Path, argument: str, value: Path | None = None) -> None:
        self._path = folder / LOCK
        self._argument = argument
        self._value = str(value or folder)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        while not self._try_to_lock():
            pass  # the last holder removed the file or the folder meanwhile
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def remove(self) -> None:
        """Remove the lock file, and the folder if nothing else is in it; call it while the lock is held."""
        discard(self._path)
        with suppress(OSError):  # raised if the folder holds a result, or the next process's lock
            self._path.parent.rmdir()

    def _try_to_lock(self) -> bool:
        make_folder(self._path.parent)
        with suppress(FileNotFoundError), ExitStack() as stack:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._check_lock_error(error, descriptor)
                raise
            if os.path.samestat(os.fstat(descriptor), self._path.stat()):
                note = f"process {os.getpid()} on {socket.gethostname()} (since {time.strftime('%Y-%m-%d %H:%M:%S')})"
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, note.encode(), 0)
                self._stack = stack.pop_all()
                return True
        return False

    def _check_lock_error(self, error: OSError, descriptor: int) -> None:
        """Raise RunError if the file is locked, or can't be."""
        if isinstance(error, BlockingIOError):
            note = os.pread(descriptor, 200, 0).decode(errors="replace")
            holder = note if note.startswith("process ") and note.isprintable() else "another process"
            raise RunError(
                f"{self._argument} is {self._value!r}, where {holder} is at work; wait for it, end it, or name another",
                argument=self._argument,
            ) from None
        if error.errno in {errno.ENOLCK, *WITHOUT_SUPPORT}:
            self.remove()
            raise RunError(
                f"{self._argument} is {self._value!r}, but files can't be locked there ({error.strerror}), so two "
                "processes could write the same files; name a folder on a local disk, or mount that disk with locks "
                "(for NFS, start its lock daemon or use the option local_lock=flock; for Lustre, flock)",
                argument=self._argument,
            ) from error


_Result = TypeVar("_Result")
WAITS_SECONDS = (1.0, 5.0, 20.0)
SECONDS_UNTIL_ROOM = 5.0  # between two attempts on a full disk
_SECONDS_BETWEEN_LINES = 60.0
_FULL = {errno.ENOSPC, errno.EDQUOT}
# Errors of a network disk that is unavailable for a moment.
_TRANSIENT = {errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EBUSY}

stop_waiting = threading.Event()
"""Set when the program is told to end; then ``retry`` no longer waits for room on a full disk. It is process-wide,
because rank 0 of several writes its files in a thread, which receives no signals."""


def retry(action: Callable[[], _Result]) -> _Result:
    """Call ``action``, and again after a pause if the disk fails in a way that may pass.

    On a full disk it waits until there is room or ``stop_waiting`` is set, and logs that once a minute. After any
    other failure that may pass, it tries again up to three times. ``action`` must be safe to repeat.

    Raises:
        OSError: an error that will not pass, or the error of the last attempt.
    """
    pauses = iter(WAITS_SECONDS)
    since_line = _SECONDS_BETWEEN_LINES
    while True:
        try:
            return action()
        except OSError as error:
            is_full = error.errno in _FULL
            pause = None
            if is_full:
                pause = SECONDS_UNTIL_ROOM
            elif error.errno in _TRANSIENT:
                pause = next(pauses, None)
            if pause is None or (is_full and stop_waiting.is_set()):
                raise
            if not is_full or since_line >= _SECONDS_BETWEEN_LINES:
                then = "waiting until there is room" if is_full else f"trying again in {pause:.0f} s"
                _log.warning(f"{describe_os_error(error)}; {then}")
                since_line = 0.0
        (stop_waiting.wait if is_full else time.sleep)(pause)
        since_line += pause


def describe_os_error(error: OSError) -> str:
    """Return the name of the file, if the error has one, and the system's reason, for a message."""
    why = error.strerror or str(error)
    return f"{error.filename}: {why}" if error.filename else why
