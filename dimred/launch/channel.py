"""What a rank reports to its launcher, over the socket pair that the launcher gave it: a JSON list in each packet.

["at", DOING, STEP], ["alive"], ["bar", NAME, TOTAL, DONE, STATUS] or ["refused", WHY]; anything else is dropped.
"""

import json
import logging
import math
import os
import socket
import time
from contextlib import suppress

from dimred.console import LiveBar

_log = logging.getLogger(__name__)

LAUNCHER = "DIMRED_LAUNCHER"  # environment variable: the file descriptor of the rank's end of the pair
READING, COMPUTING = "reading the batch of", "computing"
_SECONDS_BETWEEN_BARS = 0.1
_LONGEST_REASON = 10_000  # characters


def _connect() -> socket.socket | None:
    """Take this process's end of the pair; a program that it starts gets neither the variable nor the descriptor."""
    if (number := os.environ.pop(LAUNCHER, None)) is None:
        return None
    launcher = socket.socket(fileno=int(number))
    launcher.set_inheritable(False)
    return launcher


_launcher = _connect()
_told: set[str] = set()  # kinds of messages


def has_launcher() -> bool:
    """Return whether this process is a rank that a launcher watches."""
    return _launcher is not None


def _tell(kind: str, *content: str | int, flags: int = socket.MSG_DONTWAIT) -> bool:
    """Send a message, which is lost if the launcher stands still and reads nothing; return whether it was taken."""
    _told.add(kind)
    with suppress(OSError):  # a launcher that is gone takes its ranks with it
        return _launcher is not None and _launcher.send(json.dumps([kind, *content]).encode(), flags) > 0
    return False


def tell_refusal(why: str) -> bool:
    """Leave it to the launcher to say why this rank refuses to begin, and wait until it can take that.

    Returns:
        False if the caller must say it: there is no launcher, or the rank has begun.
    """
    return not _told and _tell("refused", why[:_LONGEST_REASON], flags=0)


def tell_position(doing: str, step: int) -> None:
    """Report what this rank begins to do for a step, so that the launcher can name a rank that stalls."""
    _tell("at", doing, step)


def tell_alive() -> None:
    """Report activity without a completed step, as in a pass over ``val``."""
    if "at" in _told:  # the launcher watches for stalls only after the first position
        _tell("alive")


class _SignsOfLife(logging.Handler):
    """Takes whatever is logged for a sign of life, such as that a disk is full and the run waits for room."""

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the launcher."""
        tell_alive()


if has_launcher():
    logging.getLogger("dimred").addHandler(_SignsOfLife())


class StageBar:
    """The bar of a stage, inside ``with``: in this process's terminal, or in that of its launcher.

    Without a terminal the logger is told how far the stage is.

    Args:
        name: of the stage.
        total: steps in all.
        done: steps that earlier runs have done.
    """

    def __init__(self, name: str, total: int, done: int):
        self._name, self._total, self._done, self._status = name, total, done, ""
        self._bar = LiveBar()
        self._shown_at = -math.inf

    def __enter__(self) -> "StageBar":
        self._bar.start()
        self.status(None)
        return self

    def __exit__(self, *_: object) -> None:
        self.status(None)
        self._bar.stop()
        _log.debug("measuring the result")

    def step(self, status: str | None = None) -> None:
        """Count one more step."""
        self._done += 1
        if status is not None or time.monotonic() - self._shown_at > _SECONDS_BETWEEN_BARS:
            self.status(status)

    def status(self, text: str | None) -> None:
        """Show what was measured after an epoch; None leaves it as it is."""
        self._status = self._status if text is None else text
        self._shown_at = time.monotonic()
        self._bar.show(self._name, self._total, self._done, self._status)
        if self._bar.disable:
            _log.debug(f"{self._name}  step {self._done}/{self._total}  {self._status}".rstrip())
        _tell("bar", self._name, self._total, self._done, self._status)
