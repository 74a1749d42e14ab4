"""Where a rank is: it tells its launcher, which names the rank that stalls."""

from collections.abc import Iterator
from typing import TypeVar

from dimred.launch.channel import ToLauncher

__all__ = ["COMPUTING", "READING", "Heartbeat"]

READING, COMPUTING = "reading the batch of", "computing"
Item = TypeVar("Item")


class Heartbeat:
    """Tells the launcher what this rank begins to do."""

    def __init__(self) -> None:
        self._launcher = ToLauncher()

    def at(self, doing: str, step: int) -> None:
        """This rank begins to do something for a step."""
        self._launcher.tell(doing=doing, step=step)

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
