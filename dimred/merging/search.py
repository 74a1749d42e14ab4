"""Candidates and their order: windows and profiles, a greedy soup, then CMA-ES in the checkpoints' own coordinates.

Scores are signed here: higher is better. Nothing depends on the budget but where it ends, so that a search with a
larger budget begins with the same trials.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from cmaes import CMA  # type: ignore[import-untyped]

from dimred.errors import check_number
from dimred.merging.profiles import profile_coefficients
from dimred.merging.trials import PLAIN, BudgetSpentError, Candidate, Trial, Trials
from dimred.subspace.spectrum import effective_rank, principal_directions

_ENDS = 4  # windows end at the newest checkpoint, and a quarter, a half and three quarters back
_LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)
_PROFILES = ("linear", "merge-decay=cosine", "merge-decay=1-sqrt")
_AVERAGES = ("ema=0.03", "ema=0.05", "ema=0.1", "ema=0.15", "ema=0.2")
_SOUP = 16  # checkpoints a soup is made of, at most
_SIGMA = 0.5  # spread of the first generation, in units of the checkpoints' own
_PATIENCE = 3  # generations
_BEST = 2  # points of the search that go into the final, and its centre


def run_plain(trials: Trials, steps: Sequence[int]) -> None:
    """Score uniform windows; then other profiles of the best one, and EDM2's averages of all up to its end."""
    for first, end in windows(len(steps)):
        trials.get(window_candidate(steps, first, end))
    members = np.flatnonzero(trials.ranked("window")[0].candidate.coefficients)
    first, end = int(members[0]), int(members[-1]) + 1
    starts = dict.fromkeys(_PROFILES, first) | dict.fromkeys(_AVERAGES, 0)
    for profile, start in starts.items():
        if end - start < 3:
            continue
        coefficients = np.zeros(len(steps))
        coefficients[start:end] = profile_coefficients(profile, steps[start:end])
        name = f"{profile} {steps[start]}-{steps[end - 1]}"
        trials.get(Candidate("profile", name, tuple(coefficients.tolist())))


def windows(n: int) -> Iterator[tuple[int, int]]:
    """(first, end) of windows of 1, 2, 3, 5, 8, ... of n checkpoints, and of all, which end at one of four places."""
    lengths = [length for length in _LENGTHS if length < n] + [n]
    for end in dict.fromkeys(n - back * n // _ENDS for back in range(_ENDS)):
        yield from ((end - length, end) for length in lengths if length <= end)


def window_candidate(steps: Sequence[int], first: int, end: int) -> Candidate:
    """The uniform mean of the checkpoints from number ``first`` to before ``end``."""
    name = f"{steps[first]}-{steps[end - 1]}" if end - first > 1 else f"{steps[first]}"
    return Candidate("window", name, tuple(float(first <= number < end) for number in range(len(steps))))


def run_soup(trials: Trials, steps: Sequence[int]) -> None:
    """Score a greedy soup of all checkpoints; of more than 16, of 16 evenly spread ones with the newest."""
    n = len(steps)
    members = list(range(n)) if n <= _SOUP else np.linspace(0, n - 1, _SOUP).round().astype(int).tolist()

    def score(chosen: tuple[float, ...]) -> float:
        numbers = [members[place] for place in np.flatnonzero(chosen)]
        candidate = window_candidate(steps, numbers[0], numbers[0] + 1)
        if len(numbers) > 1:
            whole = tuple(float(number in numbers) for number in range(n))
            candidate = Candidate("soup", f"soup of {len(numbers)}", whole)
        return trials.signed(trials.get(candidate))

    greedy_soup(len(members), score)


def greedy_soup(n: int, score: Callable[[tuple[float, ...]], float]) -> tuple[tuple[float, ...], float]:
    """The greedy soup of n checkpoints (Wortsman et al., Model soups, 2022, recipe 1): its coefficients and score.

    They are tried from the best to the worst, of equal ones the newer first; each goes in if the mean with it scores no
    worse than without. ``score`` is of the mean with these coefficients, 0 or 1 each; higher is better, NaN for one
    that failed. It is called 2 n - 1 times at most.
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


class SearchOptions(NamedTuple):
    """How CMA-ES searches.

    Attributes:
        components: k, directions; fewer where the checkpoints span fewer.
        bound: on each |z_i|, in units of the checkpoints' own spread along each direction.
        prior: standard errors to gain for being as far from the start as the checkpoints are from their mean.
        population: candidates a generation; default CMA-ES's own, 4 + 3 ln k.
        seed: of its random numbers.
    """

    components: int = 8
    bound: float = 3.0
    prior: float = 0.5
    population: int | None = None
    seed: int = 1

    def check(self) -> None:
        """Check the ranges; ConfigError names an option that is outside."""
        check_number("--components", self.components, at_least=1, whole=True)
        check_number("--bound", self.bound, above=0)
        check_number("--prior", self.prior, at_least=0)
        check_number("--seed", self.seed, at_least=0, whole=True)
        if self.population is not None:
            check_number("--population", self.population, at_least=2, whole=True)


class Coordinates:
    """Whitened principal coordinates z of the checkpoints, around one candidate.

    The network at z is sum_i c_i x_i with c = c_0 + D' z / sqrt(N - 1), where the rows of D are the checkpoints' scores
    on their principal directions, of norm 1 and sum 0: so |z_i| = 1 is as far as the checkpoints lie from their mean
    along direction i, and c sums to 1.

    Args:
        gram: float64 (N, N), about the mean.
        start: c_0, sums to 1.
        components: k, at most.
    """

    def __init__(self, gram: np.ndarray, start: np.ndarray, components: int) -> None:
        rank = min(effective_rank(np.linalg.eigvalsh(gram)), len(gram) - 1)
        self.start, self.k = start, min(components, rank)
        if self.k > 0:
            scores = principal_directions(gram, self.k)  # but for their length
            self._rows = scores / np.linalg.norm(scores, axis=1, keepdims=True) / math.sqrt(len(gram) - 1)

    def candidate(self, point: np.ndarray, name: str) -> Candidate:
        """The network at z, (k,)."""
        coefficients = self.start + point @ self._rows
        return Candidate("search", name, tuple(coefficients.tolist()), tuple(point.tolist()))


def run_search(trials: Trials, gram: np.ndarray, options: SearchOptions) -> tuple[list[Candidate], str]:
    """CMA-ES (Hansen, 2016) around the best plain candidate, on the score less prior * unit * |z|^2 / k.

    The unit is the standard error of that candidate; where the metric gives none, a tenth of the spread of the plain
    candidates' scores. The search ends with the budget; or when in three generations neither the best nor the middle
    gained a standard error, if there is one.

    Returns:
        The best points and the centre of the last generation, and why it ended.
    """
    plain = trials.ranked(*PLAIN)
    start = np.array(plain[0].candidate.coefficients)
    coordinates = Coordinates(gram, start / start.sum(), options.components)
    if coordinates.k == 0:
        return [], "the checkpoints are all equal"
    error = (plain[0].score and plain[0].score.error) or 0.0
    unit = error or float(np.std([trials.signed(trial) for trial in plain])) / 10
    return search(trials.get, trials.signed, coordinates, options, unit, error)


def search(
    evaluate: Callable[[Candidate], Trial],
    signed: Callable[[Trial], float],
    coordinates: Coordinates,
    options: SearchOptions,
    unit: float,
    standard_error: float,
) -> tuple[list[Candidate], str]:
    """As ``run_search``, of any scores: ``evaluate`` raises ``BudgetSpentError`` when there is no more."""
    k = coordinates.k
    bounds = np.tile([-options.bound, options.bound], (k, 1))
    optimizer = CMA(np.zeros(k), _SIGMA, bounds, seed=options.seed, population_size=options.population)
    found: list[tuple[float, Candidate]] = []  # penalised scores
    reached: list[np.ndarray] = []  # the best so far, the middle of the generation
    ended = ""
    while not ended:
        told = []
        try:
            for member in range(optimizer.population_size):
                point = optimizer.ask()
                candidate = coordinates.candidate(point, f"generation {optimizer.generation + 1}, {member + 1}")
                value = signed(evaluate(candidate)) - options.prior * unit * float(point @ point) / k
                value = -math.inf if math.isnan(value) else value
                told.append((point, -value))
                found.append((value, candidate))
        except BudgetSpentError:
            ended = "the budget is spent"
            break
        optimizer.tell(told)
        reached.append(np.array([max(value for value, _ in found), np.median([-value for _, value in told])]))
        gains = np.array(reached[-_PATIENCE:]) - reached[-1 - _PATIENCE] if len(reached) > _PATIENCE else np.inf
        if standard_error and not np.any(gains > standard_error):
            ended = f"{_PATIENCE} generations gained less than a standard error"
    best = sorted(found, key=lambda item: -item[0])[:_BEST]
    centre = np.clip(optimizer.mean, -options.bound, options.bound)
    return [*(one for _, one in best), coordinates.candidate(centre, "centre of the last generation")], ended
