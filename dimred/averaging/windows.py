"""The averages that every choice is made from: windows of a series of checkpoints, profiles, and the greedy soup."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dimred.averaging.profiles import profile_coefficients

_ENDS = 4  # windows end at the newest checkpoint, and a quarter, a half and three quarters back
_LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)
_SHARES = (1, 2, 4, 8)  # of all checkpoints, in ``halved_windows``


class Window(NamedTuple):
    """Some successive checkpoints of a series, and how much each of them counts.

    Attributes:
        first, end: numbers of the first one and the one after the last, from 0, oldest first.
        profile: a name of ``profile_coefficients``.
    """

    first: int
    end: int
    profile: str = "uniform"

    def coefficients(self, steps: Sequence[int]) -> np.ndarray:
        """Return how much each checkpoint of the series counts, float64 (N,).

        Args:
            steps: of all checkpoints, oldest first.
        """
        found = np.zeros(len(steps))
        found[self.first : self.end] = profile_coefficients(self.profile, steps[self.first : self.end])
        return found

    def name(self, steps: Sequence[int]) -> str:
        """Return its name for log and result; ``steps`` as for ``coefficients``."""
        length = self.end - self.first
        if length == 1:
            return f"the snapshot of step {steps[self.first]}"
        return f"{self.profile} of {length} snapshots, steps {steps[self.first]} to {steps[self.end - 1]}"


def effective_size(coefficients: np.ndarray) -> float:
    """Return how many equal snapshots the average is worth, sum(c)^2 / sum(c^2): its variance is as small (Kish, 1965).

    Args:
        coefficients: c, (N,).
    """
    return float(coefficients.sum() ** 2 / (coefficients**2).sum())


def uniform_windows(n: int, *, shortest: int = 2, shortest_earlier: int = 5) -> list[Window]:
    """List uniform windows of n checkpoints: of 1, 2, 3, 5, 8, ... and of all, which end at one of four places.

    Args:
        n: number of checkpoints.
        shortest: of the windows that end at the newest checkpoint.
        shortest_earlier: of those that end earlier, which are of use only where they average much.
    """
    lengths = [*(length for length in _LENGTHS if length < n), n]
    found = []
    for end in dict.fromkeys(n - back * n // _ENDS for back in range(_ENDS)):
        least = shortest if end == n else shortest_earlier
        found += [Window(end - length, end) for length in lengths if least <= length <= end]
    return found


def measure_windows(n: int, loss: Callable[[Window], float]) -> None:
    """Measure a few windows of n checkpoints, from coarse to fine, so that the best of many is among them.

    The windows that end at the newest checkpoint come first: every second of the lengths 1, 2, 3, 5, 8, ... and n, and
    the two beside the best. Then the best length, or the longest that fits, is tried a quarter, a half and three
    quarters back, while that is better; and last a linear profile over twice the best window. That is about a third of
    ``uniform_windows`` and ``profiles_around``; ``tests/benchmarks/choice_study.md`` has what it leaves out.

    Args:
        n: number of checkpoints.
        loss: measures a window; called once for each, never for a length of 1 but that of the newest checkpoint.
    """
    lengths = [*(length for length in _LENGTHS if length < n), n]
    found: dict[int, float] = {}

    def measure(places: Iterable[int]) -> int:
        """Measure the lengths at these places in the list; return the place of the best length so far."""
        for place in places:
            if 0 <= place < len(lengths) and place not in found:
                found[place] = loss(Window(n - lengths[place], n))
        return min(found, key=lambda place: found[place])

    best = measure(range(0, len(lengths), 2))
    measure((best - 1, best + 1))
    if n == 1:
        return
    reached, length = min((found[place], lengths[place]) for place in found if lengths[place] > 1)
    end = n
    for earlier in sorted({n - back * n // _ENDS for back in range(1, _ENDS)} - {n}, reverse=True):
        fitting = max((one for one in lengths if 1 < one <= min(length, earlier)), default=0)
        if not fitting or (beside := loss(Window(earlier - fitting, earlier))) > reached:
            break
        length, end, reached = fitting, earlier, beside
    if min(2 * length, end) > 2:
        loss(Window(max(end - 2 * length, 0), end, "linear"))


def halved_windows(n: int) -> list[Window]:
    """List the newest n checkpoints, n / 2, n / 4 and n / 8 of them, the shortest first; single ones are left out."""
    return [Window(n - length, n) for length in sorted({n // share for share in _SHARES}) if length > 1]


def profiles_around(window: Window) -> list[Window]:
    """List other profiles of about the same effective size as a uniform window, with the same end.

    They are linear over its length and over twice that, and moving averages from the first checkpoint on. A moving
    average of span L has the decay (L - 1) / (L + 1), and then the effective size of a uniform window of L; the spans
    are half, all and twice the window's length.
    """
    length, end = window.end - window.first, window.end
    found = [Window(max(end - reach, 0), end, "linear") for reach in (length, 2 * length) if min(reach, end) > 2]
    for span in sorted({max(length // 2, 2), length, 2 * length}):
        if span < end:
            found.append(Window(0, end, f"exponential={(span - 1) / (span + 1):.3f}"))
    return list(dict.fromkeys(found))


def greedy_soup(n: int, score: Callable[[tuple[float, ...]], float]) -> tuple[tuple[float, ...], float]:
    """Build the greedy soup of n checkpoints (Wortsman et al., Model soups, 2022, recipe 1).

    They are tried from the best to the worst, of equal ones the newer first. Each goes in if the mean with it scores no
    worse than without. ``score`` is called 2 n - 1 times at most.

    Args:
        n: number of checkpoints, oldest first.
        score: takes the coefficients of a mean, 0 or 1 each, and returns its score: higher is better, NaN for one that
            failed.

    Returns:
        The coefficients and the score of the soup.
    """

    def mean_of(members: Sequence[int]) -> tuple[float, ...]:
        return tuple(float(number in members) for number in range(n))

    alone = {number: score(mean_of([number])) for number in range(n)}
    ordered = sorted((number for number in alone if not math.isnan(alone[number])), key=lambda one: (-alone[one], -one))
    if not ordered:
        return mean_of(range(n)), math.nan
    members, reached = ordered[:1], alone[ordered[0]]
    for number in ordered[1:]:
        found = score(mean_of([*members, number]))
        if found >= reached:
            members, reached = [*members, number], found
    return mean_of(members), reached
