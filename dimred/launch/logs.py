"""The folders and logs of a job's ranks on this node, which the launcher makes, shows, quotes and takes back."""

import errno
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TextIO

from dimred.errors import ConfigError
from dimred.io.run_names import ENVIRONMENT_LOG, NOT_RESULTS, RANK_LOG, SCHEDULER_LOG
from dimred.launch.job import Job

_NOISE = re.compile(rb"^\[(INFO|WARNING)\] [A-Z_]+\(\d+,.*\n", re.MULTILINE)  # of MindSpore's C++ code
_TAIL_LINES = 20
_TAIL_BYTES = 64_000


def show(text: str, stream: TextIO) -> None:
    """Write a text at once, and give up a stream that nobody reads any more.

    Ctrl-C in ``dimred train | tee`` ends ``tee`` too, while the ranks are still to save.
    """
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        if error.errno != errno.ENOSPC:  # of a file; what it did not take is tried again with the next text
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class LogTail:
    """The end of a log, which another process appends from now on; the log need not exist yet.

    Attributes:
        path: the file.
        size_before: its size in bytes, None if there was no such file.
    """

    def __init__(self, path: Path):
        self.path = path
        self.size_before = path.stat().st_size if path.exists() else None
        self._position = self.size_before or 0

    def show(self, *, to_the_end: bool = False) -> None:
        """Copy new lines to standard output, ``to_the_end`` also a line that has not ended.

        Lines of MindSpore's own code that tell of no error stay in the log.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                text = file.read()
        except OSError:  # it is not there yet, or its network disk is away for a moment, which must not end the job
            return
        if not to_the_end:
            text = text[: text.rfind(b"\n") + 1]
        self._position += len(text)
        show(_NOISE.sub(b"", text).decode(errors="replace"), sys.stdout)

    def quote(self) -> str:
        """Return the last 20 lines with the log's name, for an error message."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(self.size_before or 0, self.path.stat().st_size - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError as error:
            return f"Its log, {self.path}, can't be read ({error.strerror})"
        return "\n".join([f"The end of its log, {self.path}:", *(f"  {line}" for line in lines[-_TAIL_LINES:])])


class RankFolders:
    """The folders of this node's ranks, which may hold an earlier run.

    Attributes:
        logs: rank -> what its program prints.
        environment_logs: rank -> its command and environment.
        scheduler_log: what the scheduler prints.
    """

    def __init__(self, job: Job):
        folders = [job.folder(rank) for rank in job.local_ranks]
        self._names_before = {folder: _names(folder) for folder in folders}
        self._to_make = [path for folder in folders for path in (folder, *folder.parents) if not path.exists()]
        self._out = job.out
        self.logs = {rank: LogTail(job.folder(rank) / RANK_LOG) for rank in job.local_ranks}
        self.environment_logs = {rank: LogTail(job.folder(rank) / ENVIRONMENT_LOG) for rank in job.local_ranks}
        self.scheduler_log = LogTail(folders[0] / SCHEDULER_LOG)

    def make(self) -> None:
        """Make the folders.

        Raises:
            ConfigError: that is not possible; none is left.
        """
        try:
            for folder in self._names_before:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.take_back()
            raise ConfigError(
                f"--out is {str(self._out)!r}, which can't be written ({error.strerror}); name another folder"
            ) from error

    def take_back(self) -> None:
        """Leave the folders as they were before the launch, unless a rank has written something else than logs."""
        added = {folder: _names(folder) - before for folder, before in self._names_before.items()}
        if any(names - NOT_RESULTS for names in added.values()):
            return
        for log in (*self.logs.values(), *self.environment_logs.values(), self.scheduler_log):
            if log.size_before is not None:
                os.truncate(log.path, log.size_before)
        for path in (folder / name for folder, names in added.items() for name in names):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        for folder in sorted(self._to_make, reverse=True):
            if folder.is_dir() and not _names(folder):
                folder.rmdir()


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
