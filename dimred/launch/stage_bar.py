"""How far a stage is: a live bar in a terminal. Under a launcher the stage tells, and the launcher shows it."""

import time
from types import TracebackType
from typing import Any

from rich.progress import TaskID

from dimred.console import progress_bar
from dimred.launch.channel import ToLauncher

__all__ = ["StageBar", "ToldBar"]

_SECONDS_BETWEEN = 0.1  # a launcher is told no more often


class StageBar:
    """The bar of a stage, inside ``with``.

    Args:
        name: of the stage.
        total: steps in all.
        done: of them, by earlier runs.
    """

    def __init__(self, name: str, total: int, done: int):
        self._message: dict[str, Any] = {"bar": name, "total": total, "done": done, "status": ""}
        self._own = ToldBar()
        self._launcher = ToLauncher()
        self._told_at = 0.0

    def __enter__(self) -> "StageBar":
        self._own.start()
        self._show(at_once=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show(at_once=True)
        self._own.stop()

    def step(self, status: str | None = None) -> None:
        """One step more is done."""
        self._message["done"] += 1
        self._message["status"] = self._message["status"] if status is None else status
        self._show()

    def status(self, text: str | None) -> None:
        """Show what was measured last; None leaves it as it is."""
        self._message["status"] = self._message["status"] if text is None else text
        self._show(at_once=True)

    def _show(self, at_once: bool = False) -> None:
        self._own.show(self._message)
        now = time.monotonic()
        if at_once or now - self._told_at > _SECONDS_BETWEEN:
            self._launcher.tell(**self._message)
            self._told_at = now


class ToldBar:
    """A live bar that shows what a stage tells of itself, from ``start`` to ``stop``; silent without a terminal."""

    def __init__(self) -> None:
        self._progress = progress_bar()
        self._task: TaskID | None = None

    def start(self) -> None:
        """Begin to show."""
        self._progress.start()

    def stop(self) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()

    def show(self, message: dict[str, Any]) -> None:
        """Show the ``bar`` of a message, with the steps ``done`` of the ``total``, and its ``status``."""
        if self._task is None:
            self._task = self._progress.add_task(
                message["bar"], total=message["total"], completed=message["done"], status=message["status"]
            )
        self._progress.update(self._task, completed=message["done"], status=message["status"])
