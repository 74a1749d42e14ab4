"""SIGTERM, ctrl-C and SIGHUP: a run saves what it has and ends with a status of its own."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from dimred.errors import StoppedError
from dimred.launch.channel import LAUNCHER
from dimred.launch.signals import stop_signals


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
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in stop_signals():
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

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
        for number in self._before:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received, waits = number, self._held
        else:
            waits = LAUNCHER in os.environ
        if not waits:
            raise StoppedError(number)
