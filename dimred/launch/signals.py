"""SIGTERM, ctrl-C and SIGHUP: a run saves what it has and ends with a status of its own."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType

from dimred.errors import StoppedError
from dimred.launch.channel import LAUNCHER


def stop_signals() -> list[signal.Signals]:
    """SIGTERM, ctrl-C, and the end of the terminal unless that is ignored, as by ``nohup``."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if is_ignored else [signal.SIGHUP])]


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside the block ``handler`` is called for each of them; afterwards what was called before is called again."""
    before = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class StopSignals:
    """Inside the block these signals raise ``StoppedError``; inside ``held`` the first one is only noted.

    Under a launcher further ones change nothing: where Slurm or systemd signals every process of a job, the launcher
    passes on what this one has already. It is the launcher that ends who takes too long.

    Attributes:
        received: number of the first signal that came; None without one.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._held = False
        self._handled, self._numbers = ExitStack(), list[signal.Signals]()

    def __enter__(self) -> "StopSignals":
        self._numbers = stop_signals()
        self._handled.enter_context(handled(self._handle))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handled.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, the first signal waits until the caller looks at ``received``; a second one does not wait."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self.received is not None:
            raise StoppedError(self.received)

    def reinstall(self) -> None:
        """Put the handlers back: MindSpore takes ctrl-C for itself at the start of an epoch and when it compiles."""
        for number in self._numbers:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, waits = number, self._held
        else:
            waits = LAUNCHER in os.environ
        if not waits:
            raise StoppedError(number)
