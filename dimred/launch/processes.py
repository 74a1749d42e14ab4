"""The processes of a job: plain children of the launcher, none of which outlives it."""

import ctypes
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dimred.launch.channel import LAUNCHER

_PR_SET_PDEATHSIG = 1
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LONGEST_MESSAGE = 65_536  # bytes
_SECONDS_TO_DIE = 10.0
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before a fork, not after one


class Child:
    """A process in a session of its own, so that ctrl-C in a terminal reaches the launcher alone.

    It has a socket pair with the launcher, over which it can report. Only the two hold an end of the pair, so nobody
    else can send or receive. The kernel kills the process when the thread that started it ends, so start it from the
    main thread.

    Args:
        command: program and arguments.
        environment: everything that the process finds in ``os.environ``, but for ``LAUNCHER``.
        log: file that standard output and standard error are appended to.
        ignores_stop_signals: whether SIGTERM, SIGINT and SIGHUP do nothing to the process.

    Attributes:
        is_open: whether the process holds its end of the pair.

    Raises:
        OSError: the process could not be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, ignores_stop_signals: bool = False
    ):
        launcher, self.is_open = os.getpid(), True

        def before_exec() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:  # it ended before the kernel was asked, and nobody would tell this process
                os._exit(1)
            for number in _STOP_SIGNALS if ignores_stop_signals else ():
                signal.signal(number, signal.SIG_IGN)

        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        with theirs, log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                env={**environment, LAUNCHER: str(theirs.fileno())},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
                preexec_fn=before_exec,
            )

    def fileno(self) -> int:
        """Return the descriptor that is readable when the process has sent something, or has closed its end."""
        return self._socket.fileno()

    def messages(self) -> Iterator[Any]:
        """Yield what has arrived."""
        while self.is_open:
            try:
                packet = self._socket.recv(_LONGEST_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            self.is_open = bool(packet)
            if packet:
                yield json.loads(packet)

    def status(self, wait_seconds: float = 0.0) -> int | None:
        """Return the exit status, -n if signal n killed the process, or None if it still runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(wait_seconds)
        return None

    def terminate(self) -> None:
        """Send SIGTERM, unless the process has ended."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process and those that it started, unless it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Wait for the end of a killed process, but not for ever, as its disk may be gone; and close the socket."""
        self.status(_SECONDS_TO_DIE)
        self._socket.close()
