"""A rank's reports to its launcher, and the detection of stalls from these reports.

Each message is a JSON list: ["at", ACTIVITY, STEP], ["alive"], ["bar", NAME, TOTAL, DONE, STATUS] or ["refused", WHY].
"""

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from dimred.console import LiveBar
from dimred.launch.messages import Sender

_log = logging.getLogger(__name__)

LAUNCHER = "DIMRED_LAUNCHER"  # environment variable with the file descriptor of the rank's end of the pair
READING = "reading the batch of"
COMPUTING = "computing"
_SECONDS_BETWEEN_BARS = 0.1
_LONGEST_TURN_SECONDS = 10.0  # between two calls of ``stalled``; after a longer pause the launcher was suspended


def _connect() -> Sender | None:
    """Take over this rank's end of the socket pair, and hide it from child programs; None without a launcher."""
    number = os.environ.pop(LAUNCHER, None)
    if number is None:
        return None
    launcher = socket.socket(fileno=int(number))
    launcher.set_inheritable(False)
    return Sender(launcher)


_launcher = _connect()  # None in a process that is not a launcher's rank
_sent_kinds: set[str] = set()  # kinds of messages that this process has tried to send


def _tell(kind: str, *content: str | int, waits: bool = False) -> bool:
    """Send a message, by default without waiting; return whether it was sent."""
    _sent_kinds.add(kind)
    with suppress(OSError):  # if the launcher is gone, this rank is about to end
        return _launcher is not None and _launcher.send([kind, *content], waits=waits)
    return False


def has_launcher() -> bool:
    """Return whether this process is a rank that a launcher started."""
    return _launcher is not None


def tell_refusal(reason: str) -> bool:
    """Send the launcher the reason why this rank refuses to begin; the launcher prints it once for all ranks.

    Returns:
        Whether it was sent. It is not if there is no launcher or the rank has begun; then the caller must print it.
    """
    return not _sent_kinds and _tell("refused", reason, waits=True)


def tell_position(activity: str, step: int) -> None:
    """Report what this rank is about to do, such as ``READING``, in a step counted from 1 over all epochs.

    The launcher can then name a rank that stalls.
    """
    _tell("at", activity, step)


def tell_alive() -> None:
    """Report activity that completes no step, such as a pass over ``val``."""
    if "at" in _sent_kinds:  # the launcher watches for stalls only after the first position
        _tell("alive")


class _SignsOfLife(logging.Handler):
    """A handler that reports activity at every log record, for example from a run that waits for disk space."""

    def emit(self, record: logging.LogRecord) -> None:
        """Report activity."""
        tell_alive()


if has_launcher():
    logging.getLogger("dimred").addHandler(_SignsOfLife())


class StageBar:
    """A stage's progress bar, for a ``with`` block.

    It appears in this process's or its launcher's terminal. Without one, progress is logged at level DEBUG.

    Args:
        name: the stage's name.
        total: number of steps.
        n_done: steps made before this run was resumed.
    """

    def __init__(self, name: str, total: int, n_done: int):
        self._name = name
        self._total = total
        self._n_done = n_done
        self._status = ""
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

    def step(self) -> None:
        """Count one more step."""
        self._n_done += 1
        if time.monotonic() - self._shown_at > _SECONDS_BETWEEN_BARS:
            self.status(None)

    def status(self, text: str | None) -> None:
        """Show a text, such as an epoch's measurements; None keeps the last text."""
        self._status = self._status if text is None else text
        self._shown_at = time.monotonic()
        self._bar.show(self._name, self._total, self._n_done, self._status)
        if self._bar.disable:
            _log.debug(f"{self._name}  step {self._n_done}/{self._total}  {self._status}".rstrip())
        _tell("bar", self._name, self._total, self._n_done, self._status)


class Stall(NamedTuple):
    """A job that makes no progress."""

    rank: int  # the lowest rank that the others wait for
    words: str  # description for an error message


class StallDetector:
    """A detector of stalls from the reports of this host's ranks.

    The ranks of data-parallel training meet in every step, so when one stalls, all soon do. The rank at the smallest
    step is the straggler; a rank that never reported has not reached its first step. If all are equally far within
    a step, they wait for a rank on another host, or for each other.

    Args:
        ranks: numbers of this node's ranks.
        seconds: how long all ranks must be silent; 0 turns detection off.
        now: reads a clock in seconds.
    """

    def __init__(self, ranks: Iterable[int], seconds: float, now: Callable[[], float] = time.monotonic):
        self._seconds = seconds
        self._now = now
        self._activities: dict[int, str] = {}
        self._progress = dict.fromkeys(ranks, (-1, 0))
        self._last = self._last_turn = now()

    def heard(self, rank: int, activity: str, step: int) -> None:
        """Record what a rank is about to do; see ``tell_position``.

        Within a step ``READING`` comes first, then ``COMPUTING``, then any other activity.
        """
        self._progress[rank] = (step, {READING: 0, COMPUTING: 1}.get(activity, 2))
        self._activities[rank] = f"{activity} step {step}"
        self.alive()

    def alive(self) -> None:
        """Record that some rank is active, whether or not it has completed a step."""
        self._last = self._now()

    def stalled(self) -> Stall | None:
        """Return the stall if all ranks have been silent for too long, else None.

        The silence counts from their last report; before the first there is no stall. Call this several times a second:
        a pause of more than 10 s means that the launcher itself was suspended, and does not count.
        """
        now = self._now()
        if now - self._last_turn > _LONGEST_TURN_SECONDS:
            self._last = min(self._last + now - self._last_turn, now)
        self._last_turn = now
        silence = now - self._last
        if not self._activities or not self._seconds or silence <= self._seconds:
            return None
        return self._stall(silence)

    def _stall(self, silence: float) -> Stall:
        behind = sorted(rank for rank, far in self._progress.items() if far == min(self._progress.values()))
        others = sorted(set(self._progress) - set(behind))
        verb = "is" if len(behind) == 1 else "are"
        activity = self._activities.get(behind[0], "not at the first step yet")
        words = f"no rank has moved for {silence:.0f} s (--stall-timeout): {_named(behind)} {verb} {activity}"
        if others:
            words += f", and {_named(others)} waited for {'it' if len(behind) == 1 else 'them'}"
        elif len(behind) > 1:
            words += "; all are at the same step, so they wait for each other, or for a rank on another node"
        return Stall(behind[0], words)


def _named(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
