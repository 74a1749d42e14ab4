"""The greedy soup of a series of checkpoints."""

import math
from collections.abc import Callable, Sequence


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
