"""The signals that stop a run or a merge, and who handles them."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a run: SIGTERM, SIGINT, and, unless ignored, SIGHUP, SIGUSR1 and SIGUSR2.

    ``nohup`` ignores SIGHUP. Slurm and Grid Engine send SIGUSR1, and LSF and Grid Engine SIGUSR2, before they end a
    job.
    """
    others = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    heeded = [number for number in others if signal.getsignal(number) is not signal.SIG_IGN]
    return [signal.SIGTERM, signal.SIGINT, *heeded]


def can_handle() -> bool:
    """Return whether this thread may handle signals: Python lets only the main thread, not a notebook's worker."""
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
