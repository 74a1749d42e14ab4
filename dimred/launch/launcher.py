"""Start a job's ranks on this host, watch them, and leave none behind."""

import math
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any

from dimred.console import LiveBar
from dimred.errors import DimredError, DivergedError, FaultError
from dimred.io.stop_signals import handled
from dimred.launch.channel import StallDetector
from dimred.launch.environment import without_cluster
from dimred.launch.job import OF_SCHEDULER, Job
from dimred.launch.processes import Child, LogTail, make_folders, remove_folders, show
from dimred.run_files.run_names import ENVIRONMENT_LOG, RANK_LOG, SCHEDULER_LOG

_WAIT_SECONDS = 0.1
_SECONDS_TO_SAVE = 60.0  # between SIGTERM and SIGKILL
_SECONDS_AFTER_A_FAILURE = 2.0  # for other ranks that meet the same fault to log the cause
SECONDS_FOR_RANK_0 = 10.0  # to refuse too: if another rank has refused, rank 0 may be the reason
_ENDED_WELL = {0, 128 + signal.SIGTERM}  # done, or saved after SIGTERM
# Exit statuses with which a rank's own message says what to do.
_OWN_WORDS = {DimredError.exit_status, FaultError.exit_status, DivergedError.exit_status}
_GO_ON = "Once the cause is gone, run the same command with --resume."
_VARIABLES = (
    "ASCEND",
    "CUDA",
    "DEVICE",
    "DIMRED",
    "DNNL",
    "GLOG",
    "HCCL",
    "LD_LIBRARY",
    "MS_",
    "OMP",
    "ONEDNN",
    "PATH",
    "PYTHON",
    "RANK",
    "TMPDIR",
    "VIRTUAL_ENV",
)


class RankFailedError(DimredError):
    """A rank failed, stalled or refused its input, or the scheduler ended.

    Args:
        message: what happened.
        exit_status: the launcher's exit status, unless a rank refused its input: then it is 2.
        is_refusal: whether a rank refused its input before it began.
    """

    def __init__(self, message: str, exit_status: int = 1, is_refusal: bool = False):
        super().__init__(message)
        self.exit_status = DimredError.exit_status if is_refusal else exit_status
        self.is_refusal = is_refusal


def launch(job: Job, *, resume: bool = False, stall_timeout_seconds: float = 0) -> int:
    """Run this host's part of a job to its end.

    The first rank's log is copied to standard output as it is written; its progress bar is shown in a terminal.

    Args:
        job: see ``make_job``.
        resume: whether to continue from earlier results in the folders.
        stall_timeout_seconds: end the job after all ranks have been silent for this long; 0 turns that off.

    Returns:
        The exit status: 0 if the job came to its end. If signal n stopped it: the status of the ranks that ended other
        than by SIGTERM (143), if it is the same for all of them and above 0; otherwise 128 + n.

    Raises:
        ConfigError, MissingPackageError: from ``Job.check``, or a folder can't be made; nothing was started.
        RankFailedError: a rank refused its input before it began; the folders made for the job are removed again. Or
            a rank or the scheduler failed, or no rank moved; the message quotes the end of its log, or names the log
            that standard output shows. In each case all ranks were ended.
    """
    job.check(resume)
    new_folders = make_folders(job)
    try:
        return _Watch(job, stall_timeout_seconds).run()
    except RankFailedError as error:
        if error.is_refusal:
            remove_folders(new_folders)
        raise


class _Watch:
    """The processes of one job on this host, and their state."""

    def __init__(self, job: Job, stall_timeout_seconds: float):
        self._job = job
        self._first = job.local_ranks[0]
        self._logs = {rank: LogTail(job.folder(rank) / RANK_LOG) for rank in job.local_ranks}
        self._scheduler_log = LogTail(job.folder(self._first) / SCHEDULER_LOG)
        self._ranks: dict[int, Child] = {}
        self._scheduler: Child | None = None
        self._statuses: dict[int, int] = {}
        self._refusals: dict[int, str] = {}
        self._failure: RankFailedError | None = None
        self._signals: list[int] = []  # in order of arrival
        self._stopped_by: int | None = None
        self._stop_deadline = self._refusal_deadline = math.inf
        self._failure_deadline = -math.inf
        self._stalls = StallDetector(job.local_ranks, stall_timeout_seconds)
        self._bar = LiveBar()

    def run(self) -> int:
        """Start the processes and wait for them; none is left running, however the job ends."""
        with handled(self._note_signal):
            try:
                self._start()
                while not self._is_done():
                    self._turn()
            finally:
                self._end()
        self._logs[self._first].show(to_the_end=True)
        if self._stopped_by is not None:
            statuses = set(self._statuses.values()) - {128 + signal.SIGTERM}  # ranks always get SIGTERM
            return statuses.pop() if len(statuses) == 1 and min(statuses) > 0 else 128 + self._stopped_by
        if self._failure is not None:
            raise self._failure
        return 0

    def _start(self) -> None:
        job = self._job
        every = without_cluster(os.environ) | self._job.environment()
        if job.has_scheduler:
            # Slurm and systemd send signals to every process of a job; the ranks need the scheduler while they save.
            command = job.scheduler_command()
            log = self._scheduler_log.path
            self._scheduler = Child(command, every | OF_SCHEDULER, log, ignores_stop_signals=True)
        for rank in job.local_ranks:
            command = job.command(rank)
            environment = every | job.rank_environment(rank)
            _log_environment(job.folder(rank) / ENVIRONMENT_LOG, command, environment)
            self._ranks[rank] = Child(command, environment, self._logs[rank].path)
        self._bar.start()

    def _end(self) -> None:
        with suppress(OSError):  # the terminal may be gone
            self._bar.stop()
        children = [*self._ranks.values(), *([] if self._scheduler is None else [self._scheduler])]
        for child in children:
            child.kill()
        for child in children:
            child.close()

    def _is_done(self) -> bool:
        """Return whether the job is over here: its ranks have ended, or must be killed.

        With several hosts, the scheduler has to outlive the other hosts' ranks.
        """
        if self._failure is not None and time.monotonic() > self._failure_deadline:
            return True
        if len(self._statuses) < len(self._job.local_ranks):
            return False
        if self._job.nodes == 1 or self._scheduler is None or set(self._statuses.values()) - _ENDED_WELL:
            return True
        return self._scheduler.status() is not None

    def _turn(self) -> None:
        """Handle the ranks' messages and exits, pass signals on, show the first rank's log, and look for a failure."""
        numbers = [number for number in self._ranks if number not in self._statuses]
        reports = [self._ranks[number].reports for number in numbers]
        wait([report.fileno() for report in reports if report.is_open], _WAIT_SECONDS)
        for number in numbers:
            rank = self._ranks[number]
            status = rank.status()  # read before the messages, so that no message of an ended rank is missed
            for message in rank.reports.messages():
                self._take(number, message)
            if status is None and not rank.reports.is_open:
                status = rank.status(wait_seconds=1.0)  # the rank is about to end
            if status is not None:
                self._ended(number, status)
        if self._signals:
            self._pass_signals_on()
        self._logs[self._first].show()
        self._failure = self._failure or self._look_for_a_failure()

    def _take(self, rank: int, message: Any) -> None:
        """Handle a message from a rank."""
        match message:
            case ["at", activity, step]:
                self._stalls.heard(rank, activity, step)
            case ["alive"]:
                self._stalls.alive()
            case ["bar", *progress] if rank == self._first:
                with suppress(OSError):  # the terminal may be gone
                    self._bar.show(*progress)
            case ["refused", why]:
                self._refusals[rank] = why
                self._refusal_deadline = min(self._refusal_deadline, time.monotonic() + SECONDS_FOR_RANK_0)

    def _look_for_a_failure(self) -> RankFailedError | None:
        """Return the error for a refusal, a dead scheduler, a stall, or a stop that takes too long; otherwise None."""
        now = time.monotonic()
        all_refuse = len(self._refusals) == len(self._ranks)
        if self._first in self._refusals or all_refuse or now > self._refusal_deadline:
            return RankFailedError(self._refusals[min(self._refusals)], is_refusal=True)
        if self._scheduler is not None and (status := self._scheduler.status()):
            why = f"the scheduler {_how(status)}; the ranks were ended{self._elsewhere()}."
            return RankFailedError(f"{why} {_GO_ON} {self._scheduler_log.quote()}")
        stall = self._stalls.stalled()
        if stall is not None:
            return RankFailedError(f"{stall.words}; the ranks were ended. {_GO_ON} {self._end_of_log(stall.rank)}")
        if self._stopped_by is not None and now > self._stop_deadline:
            return RankFailedError("stopped", 128 + self._stopped_by)
        return None

    def _ended(self, rank: int, status: int) -> None:
        """Record how a rank ended: its exit status, or -n if signal n killed it."""
        self._statuses[rank] = status
        if status == 0 or self._stopped_by is not None or self._failure is not None or rank in self._refusals:
            return
        self._failure_deadline = time.monotonic() + _SECONDS_AFTER_A_FAILURE
        self._failure = self._failure_of(rank, status)

    def _failure_of(self, rank: int, status: int) -> RankFailedError:
        others = "; the other ranks were ended" if self._job.devices > 1 else ""
        others += self._elsewhere()
        go_on = "" if status in _OWN_WORDS else f" {_GO_ON}"
        return RankFailedError(
            f"rank {rank} of {self._job.devices} {_how(status)}{others}.{go_on} {self._end_of_log(rank)}",
            status if status > 0 else 128 - status,
        )

    def _end_of_log(self, rank: int) -> str:
        """Quote the end of a rank's log, or name the first rank's, which standard output shows to its end."""
        log = self._logs[rank]
        return f"Its log, shown above, is {log.path}" if rank == self._first else log.quote()

    def _elsewhere(self) -> str:
        return " (if its log names no cause, look at the other hosts)" if self._job.nodes > 1 else ""

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _pass_signals_on(self) -> None:
        """Make the ranks save at the first stop signal; end them at the second."""
        if len(self._signals) > 1:
            self._stop_deadline = 0.0
        if self._stopped_by is not None or self._failure is not None:
            return
        self._stopped_by = self._signals[0]
        self._stop_deadline = min(self._stop_deadline, time.monotonic() + _SECONDS_TO_SAVE)
        show(f"{_name(self._stopped_by)}: the ranks save and end; a second signal ends them at once\n", sys.stderr)
        for rank in self._ranks.values():
            rank.terminate()


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    is_sigkill = -status == signal.SIGKILL
    cause = ", as happens when this host runs out of memory; a smaller data.batch_size takes less" if is_sigkill else ""
    return f"was killed by {_name(-status)}{cause}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has none
        return f"signal {number}"


def _log_environment(log: Path, command: list[str], environment: Mapping[str, str]) -> None:
    """Log the time, the command, and the variables that matter to a run; others may be secret."""
    variables = sorted(f"{name}={value}" for name, value in environment.items() if name.startswith(_VARIABLES))
    with log.open("a", encoding="utf-8", errors="surrogateescape") as file:
        print(f"# {time.strftime('%Y-%m-%d %H:%M:%S')} {socket.gethostname()}", file=file)
        print(f"# {shlex.join(command)}", *variables, sep="\n", file=file)
