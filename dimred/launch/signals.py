"""The signals that stop a run: who handles them, when they raise, and what postpones them."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from dimred.errors import StoppedError
from dimred.io.atomic import stop_waiting
from dimred.launch.channel import has_launcher


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a run: SIGTERM, SIGINT, and unless they are ignored SIGHUP, SIGUSR1 and SIGUSR2.

    ``nohup`` ignores SIGHUP. Slurm and Grid Engine send SIGUSR1, and LSF and Grid Engine SIGUSR2, before they end a
    job.
    """
    others = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    return [signal.SIGTERM, signal.SIGINT, *(one for one in others if signal.getsignal(one) is not signal.SIG_IGN)]


def can_handle() -> bool:
    """Return whether this thread may handle signals: Python lets only the main one, as against a notebook's worker."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the stop signals with ``handler`` inside the block, and restore the earlier handlers afterwards.

    In a thread other than the main one the handlers stay as they are, and signals are the calling program's business.
    """
    before = {number: signal.signal(number, handler) for number in stop_signals()} if can_handle() else {}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def postponed() -> Iterator[None]:
    """Postpone the stop signals until the block ends; then the earlier handlers are called."""
    numbers: list[int] = []
    try:
        with handled(lambda number, frame: numbers.append(number)):
            yield
    finally:
        for number in numbers:
            signal.raise_signal(number)


class StopSignals:
    """A context in which the stop signals raise ``StoppedError``; inside ``held`` the first one is only noted.

    Under a launcher, further signals change nothing: if Slurm or systemd signals every process of a job, the launcher
    passes on what this process has already received. The launcher ends a rank that takes too long.

    Attributes:
        received: number of the first signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._holds = False
        self._handlers = ExitStack()

    def __enter__(self) -> "StopSignals":
        self._handlers.enter_context(handled(self._handle))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()
        stop_waiting.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the first signal back, and raise for it at the end; without a launcher, a second one raises at once."""
        self._holds = True
        try:
            yield
        finally:
            self._holds = False
        if self.received is not None:
            raise StoppedError(self.received)

    def reinstall(self) -> None:
        """Install the handlers again, because MindSpore replaces that of ctrl-C when it compiles or begins an epoch."""
        for number in stop_signals() if can_handle() else ():
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        stop_waiting.set()
        if self.received is None:
            self.received, waits = number, self._holds
        else:
            waits = has_launcher()
        if not waits:
            raise StoppedError(number)
