"""Start a job's ranks on this node, watch them, and leave none behind.

msrun starts the ranks. Alone it does not do what a job of days needs: on SIGTERM it leaves its workers running, and
after a failure it waits for its scheduler, which notices late. So the launcher hears from the process around each rank
(``rank.py``), and ends msrun itself; everything below msrun dies with its parent.
"""

import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import psutil

from dimred.console import LiveBar
from dimred.errors import DimredError
from dimred.launch.channel import LAUNCHER, Inbox, launcher_address
from dimred.launch.job import Job
from dimred.launch.logs import RankFolders, show
from dimred.launch.node_link import NodeLink
from dimred.launch.rank import outlive_sigterm
from dimred.launch.signals import handled
from dimred.launch.stall import StallDetector

_WAIT_SECONDS = 0.1
_SECONDS_TO_SAVE = 60.0  # between SIGTERM and SIGKILL
_SECONDS_TO_DIE = 10.0
_SECONDS_FOR_RANK_0 = 10.0  # after another rank has refused, perhaps because rank 0 could not go on


class RankFailedError(DimredError):
    """A rank ended before its time, with a status for the launcher; or the ranks ``refused`` their input."""

    def __init__(self, message: str, exit_status: int = 1, refused: bool = False):
        super().__init__(message)
        self.exit_status = DimredError.exit_status if refused else exit_status
        self.refused = refused


def launch(job: Job, *, resume: bool = False, dry_run: bool = False, stall_timeout_seconds: float = 0) -> int:
    """Run a job to its end; rank 0's log lines appear on standard output as they are written, its bar in a terminal.

    Args:
        job: see ``make_job``.
        resume: whether folders with earlier results are gone on with.
        dry_run: only print what each rank would run.
        stall_timeout_seconds: silence of all ranks after which the job is ended; 0 for never.

    Returns:
        0, or the status of a job that a signal stopped: 128 + signal, or what its ranks ended with where that says
        more than that they were stopped.

    Raises:
        ConfigError: there are earlier results, or the devices are missing; nothing was started.
        RankFailedError: a rank refused its input before it began; the folders are what they were. Or a rank failed:
            names the first one, and shows the end of its log. The others were ended.
    """
    if dry_run:
        print("\n".join(job.describe()))
        return 0
    job.check(resume)
    folders = RankFolders(job)
    folders.make()
    try:
        with _Watch(job, folders, stall_timeout_seconds) as watch:
            return watch.run()
    except RankFailedError as error:
        if error.refused:
            folders.take_back()
        raise


class _Watch:
    """The processes of one job on this node, and what is known of them."""

    def __init__(self, job: Job, folders: RankFolders, stall_timeout_seconds: float):
        self._job, self._folders = job, folders
        self._programs: dict[int, psutil.Process] = {}
        self._statuses: dict[int, int] = {}
        self._refusals: dict[int, str] = {}
        self._failure: RankFailedError | None = None
        self._stopped_by: int | None = None
        self._stop_deadline = self._refusal_deadline = math.inf
        self._stalls = StallDetector(job.local_ranks, stall_timeout_seconds)
        self._around: dict[Connection, int] = {}  # the connection of the process around a rank -> its rank
        self._bar = LiveBar()
        self._nodes = NodeLink(job)
        self._name = secrets.token_hex(16)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(launcher_address(self._name))
        listener.listen()
        self._inbox = Inbox(listener)

    def __enter__(self) -> "_Watch":
        self._process = self._start()
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._bar.stop()
        self._process.kill()
        self._process.wait()
        deadline = time.monotonic() + _SECONDS_TO_DIE  # the ranks die with msrun
        while any(map(_is_running, self._programs.values())) and time.monotonic() < deadline:
            time.sleep(_WAIT_SECONDS)
        self._nodes.close()
        self._inbox.close()

    def run(self) -> int:
        """Wait for all ranks, here and on the other nodes."""
        with handled(self._stop):
            while self._failure is None and not (self._all_have_ended and self._nodes.all_done):
                self._turn()
        own_log = self._folders.logs[self._job.local_ranks[0]]
        own_log.show(to_the_end=True)
        if self._stopped_by is not None:
            self._nodes.tell_failure(f"node {self._job.node_rank} was stopped")
            own = set(self._statuses.values()) - {128 + signal.SIGTERM}  # which the ranks get, whatever came here
            return own.pop() if len(own) == 1 and min(own) > 0 else 128 + self._stopped_by
        if self._failure is not None:
            self._nodes.tell_failure(str(self._failure).splitlines()[0], self._failure.refused)
            raise self._failure
        return 0

    def _start(self) -> subprocess.Popen[bytes]:
        job = self._job
        environment = os.environ | job.environment() | {LAUNCHER: self._name}
        if job.uses_msrun:
            command = job.msrun()
        else:
            environment |= job.rank_environment(job.local_ranks[0])
            command = [sys.executable, *job.rank_process()]
        with self._folders.msrun_log.path.open("ab") as log:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # ctrl-C reaches the launcher alone
                preexec_fn=outlive_sigterm,
            )

    @property
    def _all_have_ended(self) -> bool:
        return len(self._statuses) == len(self._job.local_ranks)

    def _turn(self) -> None:
        """Take what has arrived, show what is new, and look for a failure."""
        for connection, message in self._inbox.receive(_WAIT_SECONDS):
            if message is not None:
                self._take(connection, message)
            elif (rank := self._around.get(connection)) is not None and rank not in self._statuses:
                self._ended(rank, None)
        self._folders.logs[self._job.local_ranks[0]].show()
        well = self._all_have_ended and not any(self._statuses.values()) and self._stopped_by is None
        self._nodes.exchange(done=well)
        self._failure = self._failure or self._look_for_a_failure()

    def _take(self, connection: Connection, message: dict[str, Any]) -> None:
        match message:
            case {"kind": "hello", "rank": rank}:
                self._around[connection] = rank
            case {"kind": "program", "rank": rank, "pid": pid}:
                with suppress(psutil.NoSuchProcess):  # it has ended already
                    self._programs[rank] = psutil.Process(pid)
                    if self._stopped_by is not None:
                        self._programs[rank].terminate()
            case {"kind": "ended", "rank": rank, "status": status}:
                self._ended(rank, status)
            case {"kind": "at", "rank": rank, "doing": doing, "step": step}:
                self._stalls.heard(rank, doing, step)
            case {"kind": "alive"}:
                self._stalls.alive()
            case {"kind": "bar", "rank": rank, "content": content} if rank == self._job.local_ranks[0]:
                with suppress(OSError):  # of a terminal that is gone
                    self._bar.show(**content)
            case {"kind": "refused", "rank": rank, "why": why}:
                self._refusals[rank] = why
                self._refusal_deadline = min(self._refusal_deadline, time.monotonic() + _SECONDS_FOR_RANK_0)

    def _look_for_a_failure(self) -> RankFailedError | None:
        """What other nodes, refusals, msrun, and the clock say."""
        now = time.monotonic()
        ranks = self._job.local_ranks
        if ranks[0] in self._refusals or len(self._refusals) == len(ranks) or now > self._refusal_deadline:
            return RankFailedError(self._refusals[min(self._refusals)], refused=True)
        if self._nodes.failure:
            return RankFailedError(
                f"{self._nodes.failure}; the ranks of this node were ended", refused=self._nodes.refused
            )
        if self._process.poll() is not None and not self._inbox.connections and not self._all_have_ended:
            missing = min(set(ranks) - set(self._statuses))
            status, log = self._process.returncode, self._folders.msrun_log
            return RankFailedError(f"rank {missing} never started: msrun ended with status {status}. {log.quote()}")
        if (stall := self._stalls.stalled()) is not None:
            return RankFailedError(f"{stall.words}; the ranks were ended. {self._folders.logs[stall.rank].quote()}")
        if self._stopped_by is not None and now > self._stop_deadline:
            return RankFailedError("stopped", 128 + self._stopped_by)
        return None

    def _ended(self, rank: int, status: int | None) -> None:
        """Note how a rank ended: its exit status, -n where signal n killed it, None where nobody could tell."""
        self._statuses[rank] = 1 if status is None else status
        if status == 0 or self._stopped_by is not None or self._failure is not None or rank in self._refusals:
            return
        if status is None:
            how = "vanished"
        else:
            how = f"was killed by {_signal_name(-status)}" if status < 0 else f"ended with status {status}"
        others = "; the other ranks were ended" if self._job.devices > 1 else ""
        self._failure = RankFailedError(
            f"rank {rank} of {self._job.devices} {how}{others}. {self._folders.logs[rank].quote()}",
            1 if status is None else status if status > 0 else 128 - status,
        )

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """The first SIGTERM, ctrl-C or SIGHUP lets the ranks save; the second ends them at once."""
        again, self._stopped_by = self._stopped_by is not None, self._stopped_by or number
        if again or not self._programs:
            self._stop_deadline = 0.0  # at once; without programs nothing has begun
            return
        self._stop_deadline = time.monotonic() + _SECONDS_TO_SAVE
        show(f"{_signal_name(number)}: the ranks may save and end; once more ends them at once\n", sys.stderr)
        for rank, program in self._programs.items():
            if rank not in self._statuses:
                with suppress(psutil.NoSuchProcess):
                    program.terminate()


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
