"""Start a job's processes in folders with logs; they never outlive the launcher."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TextIO

from dimred.errors import ConfigError, RunError
from dimred.io.atomic import LOCK, FolderLock, make_folder, remove, writable
from dimred.io.regular_file import open_regular
from dimred.io.stop_signals import stop_signals
from dimred.io.system import start_tied
from dimred.launch.channel import LAUNCHER
from dimred.launch.job import Job
from dimred.launch.messages import Receiver
from dimred.run_files.run_names import NOT_RESULTS, RANK_LOG

_SECONDS_TO_DIE = 10.0
# Lines from MindSpore's C++ code, and an epoch's line for programs: the next line says the same for people.
_NOT_SHOWN = re.compile(rb"^(\[(INFO|WARNING)\] [A-Z_]+\(\d+,.*|epoch: \d+ step: \d+ loss is \S+)\n", re.MULTILINE)
_TAIL_LINES = 20
_TAIL_BYTES = 64_000


class Child:
    """A process in its own session, so that ctrl-C in a terminal reaches the launcher alone.

    It reports to the launcher over a socket pair that nobody else can reach. It is killed when the thread that
    started it ends, so start it from the main thread; see ``start_tied``.

    Args:
        command: program and arguments.
        environment: the process's whole environment, without ``LAUNCHER``.
        log: file to append standard output and standard error to.
        ignores_stop_signals: whether the process ignores the stop signals.

    Attributes:
        reports: receives what the process sends.

    Raises:
        OSError: the process could not be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, ignores_stop_signals: bool = False
    ):
        ours, theirs = socket.socketpair()
        self.reports = Receiver(ours)
        with theirs, log.open("ab") as file:
            self._process = start_tied(
                command,
                signal.SIGKILL,
                ignored=stop_signals() if ignores_stop_signals else (),
                env={**environment, LAUNCHER: str(theirs.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
            )

    def status(self, wait_seconds: float = 0.0) -> int | None:
        """Wait up to ``wait_seconds`` for the end; return the status (-n if signal n killed it), None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(wait_seconds)
        return None

    def terminate(self) -> None:
        """Send SIGTERM, unless the process has ended."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process and the processes that it started, unless it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Wait up to 10 s for a killed process to end, because its disk may hang; close the socket."""
        self.status(_SECONDS_TO_DIE)
        self.reports.close()


def show(text: str, stream: TextIO) -> None:
    """Write a text without buffering; once nobody reads the stream any more, discard it and all later texts.

    Ctrl-C in ``dimred train | tee`` ends ``tee`` too, while the ranks still have to save.
    """
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        if error.errno != errno.ENOSPC:  # on a full disk, the unwritten text is written before the next one
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class LogTail:
    """The text that another process appends to a log from now on; the file need not exist yet."""

    def __init__(self, path: Path):
        self.path = path
        self._start = self._position = path.stat().st_size if path.exists() else 0

    def show(self, *, to_the_end: bool = False) -> None:
        """Copy new lines to standard output, except those for programs and MindSpore's own INFO and WARNING lines.

        An incomplete last line is copied only with ``to_the_end``.
        """
        try:
            with open_regular(self.path) as file:
                file.seek(self._position)
                text = file.read()
        except OSError:  # not there yet, or on a network disk that is unreachable for a moment
            return
        if not to_the_end:
            text = text[: text.rfind(b"\n") + 1]
        self._position += len(text)
        show(_NOT_SHOWN.sub(b"", text).decode(errors="replace"), sys.stdout)

    def quote(self) -> str:
        """Return, for an error message, the log's name and last 20 lines, or why it can't be read."""
        try:
            with open_regular(self.path) as file:
                file.seek(max(self._start, self.path.stat().st_size - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError as error:
            return f"Its log, {self.path}, can't be read ({error.strerror})"
        return "\n".join([f"The end of its log, {self.path}:", *(f"  {line}" for line in lines[-_TAIL_LINES:])])


def make_folders(job: Job) -> list[Path]:
    """Make the folders of this host's ranks, and return the new ones, parents included.

    Raises:
        ConfigError: a folder can't be made or written to; new ones are removed again.
    """
    folders = [job.folder(rank) for rank in job.local_ranks]
    new = [path for folder in folders for path in (folder, *folder.parents) if not path.exists()]
    try:
        with writable("--out", job.out):
            for folder in folders:
                make_folder(folder)
                (folder / RANK_LOG).open("ab").close()  # the disk of a run to resume may have become read-only
    except ConfigError:
        remove_folders(new)
        raise
    return new


def remove_folders(folders: Iterable[Path]) -> None:
    """Remove the folders that hold nothing but logs; others stay as they are.

    A folder whose lock another process holds stays too: if two jobs start at once, one is refused while the other may
    not have written anything yet.
    """
    for folder in sorted(folders, reverse=True):
        names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
        if not folder.is_dir() or not names <= NOT_RESULTS:
            continue
        with suppress(RunError, OSError), ExitStack() as stack:
            if LOCK in names:
                stack.enter_context(FolderLock(folder, "--out"))
            for entry in list(folder.iterdir()):
                remove(entry)
            folder.rmdir()
