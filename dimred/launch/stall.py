"""Which rank a job waits for, when none moves any more."""

import time
from collections.abc import Callable
from typing import NamedTuple

from dimred.launch.heartbeat import COMPUTING, READING

__all__ = ["Stall", "StallDetector"]


class Stall(NamedTuple):
    """A job that stands still.

    Attributes:
        rank: the one the others wait for; of several that are equally far, the lowest.
        words: for people.
    """

    rank: int
    words: str


class StallDetector:
    """What each rank of this node was heard to do last.

    In data-parallel training the ranks meet in every step, so that all soon stand still where one does. The one that
    others wait for is then the one that is least far. Where all are equally far, they wait for another node's rank, or
    for each other.

    Args:
        seconds: of silence of all ranks that are a stall; 0 for never.
        now: a clock.
    """

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic):
        self._seconds = seconds
        self._now = now
        self._heard: dict[int, tuple[int, str]] = {}
        self._last = 0.0

    def heard(self, rank: int, doing: str, step: int) -> None:
        """A rank begins to do something for a step."""
        self._heard[rank] = (step, doing)
        self._last = self._now()

    def stalled(self) -> Stall | None:
        """Who stalls, once all ranks have been silent for too long; before the first was heard none does."""
        silence = self._now() - self._last
        if not self._heard or not self._seconds or silence <= self._seconds:
            return None
        far = {rank: _far(*position) for rank, position in self._heard.items()}
        behind = sorted(rank for rank in far if far[rank] == min(far.values()))
        others = sorted(set(far) - set(behind))
        step, doing = self._heard[behind[0]]
        words = f"no rank has moved for {silence:.0f} s (--stall-timeout): "
        words += f"{_named(behind)} {'is' if len(behind) == 1 else 'are'} {doing} step {step}"
        if others:
            words += f", and {_named(others)} waited for it"
        elif len(behind) > 1:
            words += "; all are equally far, so one waits for another, or for a rank of another node"
        return Stall(behind[0], words)


def _named(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _far(step: int, doing: str) -> tuple[int, int]:
    """Reading comes before computing; whatever else is told of a step comes after it."""
    return step, (READING, COMPUTING).index(doing) if doing in (READING, COMPUTING) else 2
