"""Start a job's ranks on this node, watch them, and leave none behind.

msrun starts the ranks. Alone it does not do what a job of days needs: on SIGTERM it leaves its workers running, and
after a failure it waits for its scheduler, which notices late. So the launcher hears from each rank's ``rank_process``
over a local socket, and ends msrun itself; everything below it dies with its parent (``die_with_parent``).
"""

import math
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import cast

from dimred.errors import ConfigError, DimredError
from dimred.launch.channel import Heard, launcher_address
from dimred.launch.die_with_parent import die_with_parent
from dimred.launch.job import LAUNCHER, MSRUN_LOGS, RANK_LOG, Job
from dimred.launch.launch_check import check_launch
from dimred.launch.log_tail import LogTail, last_lines
from dimred.launch.node_link import NodeLink
from dimred.launch.stage_bar import ToldBar
from dimred.launch.stall import StallDetector

__all__ = ["RankFailedError", "launch"]

_WAIT_SECONDS = 0.1
_SECONDS_TO_SAVE = 60.0  # between SIGTERM and SIGKILL
_SECONDS_TO_DIE = 10.0


class RankFailedError(DimredError):
    """A rank ended before its time.

    Attributes:
        status: exit status for the launcher.
    """

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


def launch(job: Job, *, resume: bool = False, dry_run: bool = False, stall_timeout_seconds: float = 0) -> int:
    """Run a job to its end; rank 0's log lines appear on standard output as they are written, its bar in a terminal.

    Args:
        job: see ``make_job``.
        resume: whether folders with earlier results are gone on with.
        dry_run: only print what each rank would run.
        stall_timeout_seconds: silence of all ranks after which the job is ended, see ``StallDetector``; 0 for never.

    Returns:
        0, or the status of a job that SIGTERM or ctrl-C stopped: the one its ranks ended with after saving, or
        128 + signal.

    Raises:
        ConfigError: there are earlier results, or the devices are missing; nothing was started.
        RankFailedError: names the first rank that failed, and shows the end of its log; the others were ended.
    """
    if dry_run:
        print("\n".join(job.describe()))
        return 0
    check_launch(job, resume)
    with _Watch(job, stall_timeout_seconds) as watch:
        return watch.run()


class _Watch:
    """The processes of one job on this node, and what is known of them."""

    def __init__(self, job: Job, stall_timeout_seconds: float):
        self.job = job
        self.pids: dict[int, int] = {}
        self.statuses: dict[int, int] = {}
        self.failure: RankFailedError | None = None
        self.stopped_by: int | None = None
        self._name = secrets.token_hex(16)
        self._stop_deadline = math.inf
        self._positions = StallDetector(stall_timeout_seconds)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._bar = ToldBar()
        self._shown = LogTail(job.folder(job.local_ranks[0]) / RANK_LOG)
        self._nodes = NodeLink(job.nodes, job.node_rank, job.master_addr, job.master_port + 1)

    def __enter__(self) -> "_Watch":
        self._listener.bind(launcher_address(self._name))
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._process = self._start()
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        self._process.kill()
        self._process.wait()
        self._wait_until_gone()
        self._nodes.close()
        for key in list(self._selector.get_map().values()):
            cast(socket.socket, key.fileobj).close()
        self._selector.close()

    def run(self) -> int:
        """Wait for all ranks, here and on the other nodes."""
        with _signals(self._stop):
            while self.failure is None and not (
                len(self.statuses) == len(self.job.local_ranks) and self._nodes.all_done
            ):
                self._wait()
        self._shown.show(to_the_end=True)
        if self.stopped_by is not None:
            self._nodes.tell_failure(f"node {self.job.node_rank} was stopped")
            own = set(self.statuses.values())
            return own.pop() if len(own) == 1 and min(own) > 0 else 128 + self.stopped_by
        if self.failure is not None:
            self._nodes.tell_failure(str(self.failure).splitlines()[0])
            raise self.failure
        return 0

    def _start(self) -> subprocess.Popen[bytes]:
        job = self.job
        environment = os.environ | job.environment() | {LAUNCHER: self._name}
        if job.uses_msrun:
            command = job.msrun()
        else:
            environment |= job.rank_environment(job.local_ranks[0])
            command = [sys.executable, *job.rank_process()]
        logs = job.folder(job.local_ranks[0]) / MSRUN_LOGS
        try:
            for rank in job.local_ranks:
                job.folder(rank).mkdir(parents=True, exist_ok=True)
            logs.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--out is {str(job.out)!r}, which can't be written ({error.strerror}); name another folder"
            ) from error
        self._msrun_log = logs / "msrun.log"
        with self._msrun_log.open("ab") as log:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # ctrl-C reaches the launcher alone
                preexec_fn=die_with_parent,
            )

    def _wait(self) -> None:
        for key, _ in self._selector.select(_WAIT_SECONDS):
            key.data(key.fileobj)
        self._shown.show()
        self._nodes.exchange(done=self._ranks_are_done() and self.stopped_by is None)
        if self._nodes.failure is not None and self.failure is None:
            self.failure = RankFailedError(f"{self._nodes.failure}; the ranks of this node were ended", 1)
        if self._process.poll() is not None and not self._selector_is_busy() and self.failure is None:
            missing = sorted(set(self.job.local_ranks) - set(self.statuses))
            if missing:
                self.failure = RankFailedError(
                    f"rank {missing[0]} never started: msrun ended with status {self._process.returncode}. The end of "
                    f"its log, {self._msrun_log}:\n{last_lines(self._msrun_log)}",
                    1,
                )
        if self.failure is None and (stall := self._positions.stalled()) is not None:
            self.failure = RankFailedError(f"{stall.words}; the ranks were ended. {self._log_of(stall.rank)}", 1)
        if self.stopped_by is not None and time.monotonic() > self._stop_deadline and self.failure is None:
            self.failure = RankFailedError("stopped", 128 + self.stopped_by)

    def _ranks_are_done(self) -> bool:
        """Whether all have ended, and none because it failed."""
        return self.failure is None and len(self.statuses) == len(self.job.local_ranks)

    def _selector_is_busy(self) -> bool:
        """Whether a rank's process is still connected."""
        return len(self._selector.get_map()) > 1

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        heard = Heard(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda _: self._listen(heard))

    def _listen(self, heard: Heard) -> None:
        for message in heard.messages():
            rank = message["rank"]
            if "bar" in message:
                if rank == self.job.local_ranks[0]:
                    self._bar.show(message)
                continue
            if "doing" in message:
                self._positions.heard(rank, message["doing"], message["step"])
                continue
            heard.rank = rank
            if "pid" in message:
                self.pids[rank] = message["pid"]
                if self.stopped_by is not None:
                    self._terminate(rank)
            elif "status" in message:
                self._ended(rank, message["status"])
        if heard.closed:
            self._selector.unregister(heard.connection)
            heard.connection.close()
            if heard.rank is not None and heard.rank not in self.statuses:
                self._ended(heard.rank, None)

    def _ended(self, rank: int, status: int | None) -> None:
        """Note how a rank ended: its exit status, -n where signal n killed it, None where nobody could tell."""
        self.statuses[rank] = 1 if status is None else status
        if status == 0 or self.stopped_by is not None or self.failure is not None:
            return
        if status is None:
            how = "vanished"
        else:
            how = f"was killed by {_signal_name(-status)}" if status < 0 else f"ended with status {status}"
        others = "; the other ranks were ended" if self.job.devices > 1 else ""
        self.failure = RankFailedError(
            f"rank {rank} of {self.job.devices} {how}{others}. {self._log_of(rank)}",
            1 if status is None else status if status > 0 else 128 - status,
        )

    def _log_of(self, rank: int) -> str:
        log = self.job.folder(rank) / RANK_LOG
        return f"The end of its log, {log}:\n{last_lines(log)}"

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """The first SIGTERM or ctrl-C lets the ranks save; the second ends them at once."""
        if self.stopped_by is None:
            self.stopped_by = number
            self._stop_deadline = time.monotonic() + _SECONDS_TO_SAVE
            print(f"{_signal_name(number)}: the ranks may save and end; once more ends them at once", file=sys.stderr)
            for rank in self.pids:
                self._terminate(rank)
            if not self.pids:
                self._stop_deadline = 0.0  # nothing has begun
        else:
            self._stop_deadline = 0.0

    def _terminate(self, rank: int) -> None:
        if rank not in self.statuses:
            with suppress(ProcessLookupError):
                os.kill(self.pids[rank], signal.SIGTERM)

    def _wait_until_gone(self) -> None:
        """The ranks die with msrun; wait for it, so that nothing runs on after the launcher's last word."""
        deadline = time.monotonic() + _SECONDS_TO_DIE
        while any(_runs(pid) for pid in self.pids.values()) and time.monotonic() < deadline:
            time.sleep(_WAIT_SECONDS)


@contextmanager
def _signals(handler: object) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
