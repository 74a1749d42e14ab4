"""SIGTERM, ctrl-C and SIGHUP, after which a run saves what it has and ends with a status of its own."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType

from dimred.errors import StoppedError
from dimred.io.atomic import stop_waiting
from dimred.launch.channel import has_launcher


def stop_signals() -> list[signal.Signals]:
    """Return SIGTERM, SIGINT, and SIGHUP unless that is ignored, as by ``nohup``."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if is_ignored else [signal.SIGHUP])]


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call ``handler`` for each of these signals inside the block, and afterwards the handlers from before again."""
    before = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class StopSignals:
    """Raises ``StoppedError`` for these signals inside ``with``; inside ``held`` the first one is only noted.

    Under a launcher further ones change nothing: if Slurm or systemd signals every process of a job, the launcher
    passes on what this process has got already. The launcher ends a rank that takes too long.

    Attributes:
        received: number of the first signal, or None.
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
        stop_waiting.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only note the first signal inside the block, in ``received``; raise for a second one, and after the block."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self.received is not None:
            raise StoppedError(self.received)

    def reinstall(self) -> None:
        """Put the handlers back, because MindSpore takes ctrl-C for itself when it compiles or begins an epoch."""
        for number in self._numbers:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        stop_waiting.set()
        if self.received is None:
            self.received, waits = number, self._held
        else:
            waits = has_launcher()
        if not waits:
            raise StoppedError(number)
