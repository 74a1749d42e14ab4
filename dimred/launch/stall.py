"""Stalls: none of the ranks moves any more, and one of them is the one that the others wait for."""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from dimred.launch.channel import COMPUTING, READING

_LONGEST_TURN_SECONDS = 10.0  # of a launcher that is not stopped, as all of a job is that Slurm suspends


class Stall(NamedTuple):
    """A job that stands still.

    Attributes:
        rank: the lowest of the ranks that the others wait for.
        words: the stall in words, for an error message.
    """

    rank: int
    words: str


class StallDetector:
    """Detects a stall from what the ranks of this node report.

    The ranks of data-parallel training meet in every step, so when one stands still, all of them soon do. The rank
    with the smallest step is the straggler; one that was never heard has not come to its first step. Where all are
    equally far, they wait for a rank of another node, or for each other.

    Args:
        ranks: numbers of this node's ranks.
        seconds: how long all ranks must be silent; 0 turns detection off.
        now: reads a clock in seconds.
    """

    def __init__(self, ranks: Iterable[int], seconds: float, now: Callable[[], float] = time.monotonic):
        self._seconds, self._now = seconds, now
        self._doing: dict[int, str] = {}
        self._far = dict.fromkeys(ranks, (-1, 0))
        self._last = self._asked = now()

    def heard(self, rank: int, doing: str, step: int) -> None:
        """Record that a rank begins to do something for a step: first reading, then computing, then anything else."""
        self._far[rank] = (step, {READING: 0, COMPUTING: 1}.get(doing, 2))
        self._doing[rank] = f"{doing} step {step}"
        self.alive()

    def alive(self) -> None:
        """Record activity of a rank without a completed step."""
        self._last = self._now()

    def stalled(self) -> Stall | None:
        """Return the stall if all ranks have been silent for too long; there is none before the first was heard.

        Call it all the time: a longer pause means that the launcher stood still itself, and does not count.
        """
        now = self._now()
        if now - self._asked > _LONGEST_TURN_SECONDS:
            self._last = min(self._last + now - self._asked, now)
        self._asked = now
        silence = now - self._last
        if not self._doing or not self._seconds or silence <= self._seconds:
            return None
        behind = sorted(rank for rank, far in self._far.items() if far == min(self._far.values()))
        others = sorted(set(self._far) - set(behind))
        verb = "is" if len(behind) == 1 else "are"
        doing = self._doing.get(behind[0], "not at the first step yet")
        words = f"no rank has moved for {silence:.0f} s (--stall-timeout): {_named(behind)} {verb} {doing}"
        if others:
            words += f", and {_named(others)} waited for it"
        elif len(behind) > 1:
            words += "; all are equally far, so one waits for another, or for a rank of another node"
        return Stall(behind[0], words)


def _named(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
