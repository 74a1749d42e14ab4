"""The signals that stop a run: when they raise an error, and what postpones them."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from dimred.errors import StoppedError
from dimred.io.atomic import stop_waiting
from dimred.io.stop_signals import can_handle, handled, stop_signals
from dimred.launch.channel import has_launcher


@contextmanager
def postponed() -> Iterator[None]:
    """Postpone the stop signals until the block ends; then call the earlier handlers."""
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
    passes on a signal that this process has already received. The launcher ends a rank that takes too long.

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
        """Hold back the first signal, and raise for it at the end; without a launcher, a second raises at once."""
        self._holds = True
        try:
            yield
        finally:
            self._holds = False
        if self.received is not None:
            raise StoppedError(self.received)

    def reinstall(self) -> None:
        """Reinstall the handlers: MindSpore replaces the ctrl-C handler when it compiles or begins an epoch."""
        for number in stop_signals() if can_handle() else ():
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        stop_waiting.set()
        if self.received is None:
            self.received = number
            waits = self._holds
        else:
            waits = has_launcher()
        if not waits:
            raise StoppedError(number)
