"""Where a rank is: it tells its launcher, which names the rank that stalls."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

from dimred.runtime.job import LAUNCHER
from dimred.runtime.rank_messages import launcher_address, tell

__all__ = ["COMPUTING", "READING", "Heartbeat"]

READING, COMPUTING = "reading the batch of", "computing"
Item = TypeVar("Item")


class Heartbeat:
    """Tells the launcher what this rank begins to do; without a launcher nothing is told."""

    def __init__(self) -> None:
        self._rank = int(os.environ.get("RANK_ID", "0"))
        self._launcher: socket.socket | None = None
        if LAUNCHER in os.environ:
            self._launcher = socket.socket(socket.AF_UNIX)
            with suppress(OSError):  # a launcher that is gone takes its ranks with it
                self._launcher.connect(launcher_address(os.environ[LAUNCHER]))

    def at(self, doing: str, step: int) -> None:
        """This rank begins to do something for a step."""
        if self._launcher is not None:
            with suppress(OSError):
                tell(self._launcher, rank=self._rank, doing=doing, step=step)

    def around(self, batches: Iterator[Item], steps_before: int) -> Iterator[Item]:
        """The batches; tells before each is read, and after it that its step is computed."""
        step = steps_before
        while True:
            step += 1
            self.at(READING, step)
            try:
                batch = next(batches)
            except StopIteration:
                return
            self.at(COMPUTING, step)
            yield batch
