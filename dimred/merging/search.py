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
from dimred.merging.trials import Candidate, Trial
from dimred.subspace.spectrum import effective_rank, principal_directions

__all__ = [
    "BudgetSpentError", "Coordinates", "Outcome", "SearchOptions", "check_options", "greedy_soup", "profile_candidates",
    "search", "soup_members", "window_candidate", "window_candidates",
]  # fmt: skip

_ENDS = 4  # windows end at the newest checkpoint, and a quarter, a half and three quarters back
_SOUP = 16  # checkpoints a soup is made of, at most
_WIDTHS = (0.03, 0.05, 0.1, 0.15, 0.2)
_PATIENCE = 3  # generations
Evaluate = Callable[[Candidate], Trial]


class BudgetSpentError(Exception):
    """No more evaluations."""


class SearchOptions(NamedTuple):
    """How CMA-ES searches.

    Attributes:
        components: k, directions; fewer where the checkpoints span fewer.
        sigma: spread of the first generation, in units of the checkpoints' own spread along each direction.
        bound: on each |z_i|, in the same units.
        prior: standard errors to gain for being as far from the start as the checkpoints are from their mean.
        population: candidates a generation; default CMA-ES's own, 4 + 3 ln k.
        seed: of its random numbers.
    """

    components: int = 8
    sigma: float = 0.5
    bound: float = 3.0
    prior: float = 0.5
    population: int | None = None
    seed: int = 1


def window_candidates(steps: Sequence[int]) -> Iterator[Candidate]:
    """Uniform means of windows: 1, 2, 3, 5, 8, ... checkpoints, which end at one of four."""
    n = len(steps)
    lengths, following = [1], 2
    while following < n:
        lengths, following = [*lengths, following], following + lengths[-1]
    lengths += [n] if n > 1 else []
    for end in dict.fromkeys(n - back * n // _ENDS for back in range(_ENDS)):
        for length in lengths:
            if length <= end:
                yield window_candidate(steps, end - length, end)


def window_candidate(steps: Sequence[int], first: int, end: int) -> Candidate:
    """The uniform mean of the checkpoints from number ``first`` to before ``end``."""
    name = f"{steps[first]}-{steps[end - 1]}" if end - first > 1 else f"{steps[first]}"
    return Candidate("window", name, _window(len(steps), first, np.ones(end - first)))


def profile_candidates(steps: Sequence[int], first: int, end: int) -> Iterator[Candidate]:
    """Other profiles of the window from ``first`` to before ``end``, and EDM2's averages of all up to there."""
    n = len(steps)
    if end - first > 2:
        for profile in ("linear", "merge-decay=cosine", "merge-decay=1-sqrt"):
            coefficients = profile_coefficients(profile, steps[first:end])
            yield Candidate("profile", f"{profile} {steps[first]}-{steps[end - 1]}", _window(n, first, coefficients))
    if end > 2:
        for width in _WIDTHS:
            coefficients = profile_coefficients(f"ema={width}", steps[:end])
            yield Candidate("profile", f"ema={width} to {steps[end - 1]}", _window(n, 0, coefficients))


def _window(n: int, first: int, coefficients: np.ndarray) -> tuple[float, ...]:
    whole = np.zeros(n)
    whole[first : first + len(coefficients)] = coefficients
    return tuple(whole.tolist())


def greedy_soup(n: int, score: Callable[[tuple[float, ...]], float]) -> tuple[tuple[float, ...], float]:
    """The greedy soup of n checkpoints (Wortsman et al., Model soups, 2022, recipe 1): its coefficients, and its score.

    They are tried from the best to the worst, of equal ones the newer first; each goes in if the mean with it scores no
    worse than without.

    Args:
        n: how many.
        score: of the mean with these coefficients, 0 or 1 each; higher is better, NaN for one that failed. Called
            2 n - 1 times at most.
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


def soup_members(n: int) -> list[int]:
    """The checkpoints a soup is made of: all, or 16 evenly spread ones with the newest."""
    return list(range(n)) if n <= _SOUP else np.linspace(0, n - 1, _SOUP).round().astype(int).tolist()


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
        self.start = start
        self.k = min(components, rank)
        if self.k > 0:
            scores = principal_directions(gram, self.k).coefficients  # but for their length
            self._rows = scores / np.linalg.norm(scores, axis=1, keepdims=True) / math.sqrt(len(gram) - 1)

    def candidate(self, point: np.ndarray, name: str) -> Candidate:
        """The network at z, (k,)."""
        coefficients = self.start + point @ self._rows
        return Candidate("search", name, tuple(coefficients.tolist()), tuple(point.tolist()))


class Outcome(NamedTuple):
    """What a search ended with: its best trials by penalised score, the centre of its last generation, and why."""

    best: list[Trial]
    centre: Candidate
    ended: str


def search(
    coordinates: Coordinates,
    options: SearchOptions,
    evaluate: Evaluate,
    signed: Callable[[Trial], float],
    unit: float,
    standard_error: float,
) -> Outcome:
    """CMA-ES (Hansen, 2016) from z = 0, on the score less prior * unit * |z|^2 / k.

    Args:
        coordinates: around the best plain candidate.
        options: of the search.
        evaluate: raises ``BudgetSpentError`` when there is no more.
        signed: the score of a trial, higher is better; NaN for one that failed.
        unit: of the prior, in units of the score.
        standard_error: of the start. Three generations in which neither the best nor the middle gains that much end the
            search; 0 leaves it to the budget.
    """
    k = coordinates.k
    bounds = np.tile([-options.bound, options.bound], (k, 1))
    optimizer = CMA(np.zeros(k), options.sigma, bounds, seed=options.seed, population_size=options.population)
    trials: list[tuple[float, Trial]] = []
    reached: list[np.ndarray] = []  # the best so far, the middle of the generation
    ended = ""
    while not ended:
        told = []
        try:
            for member in range(optimizer.population_size):
                point = optimizer.ask()
                name = f"generation {optimizer.generation + 1}, {member + 1}"
                trial = evaluate(coordinates.candidate(point, name))
                value = signed(trial) - options.prior * unit * float(point @ point) / k
                told.append((point, math.inf if math.isnan(value) else -value))
                if not math.isnan(value):
                    trials.append((value, trial))
        except BudgetSpentError:
            ended = "the budget is spent"
            break
        optimizer.tell(told)
        best = max((value for value, _ in trials), default=-math.inf)
        reached.append(np.array([best, np.median([-value for _, value in told])]))
        if standard_error and len(reached) > _PATIENCE:
            gains = np.array(reached[-_PATIENCE:]) - reached[-1 - _PATIENCE]
            if not (gains > standard_error).any():
                ended = f"{_PATIENCE} generations gained less than a standard error"
    ranked = [trial for _, trial in sorted(trials, key=lambda item: (-item[0], item[1].number))]
    centre = coordinates.candidate(
        np.clip(optimizer.mean, -options.bound, options.bound), "centre of the last generation"
    )
    return Outcome(ranked, centre, ended)


def check_options(options: SearchOptions) -> None:
    """Whether every option is in its range.

    Raises:
        ConfigError: one is not.
    """
    check_number("--components", options.components, at_least=1, whole=True)
    check_number("--sigma", options.sigma, above=0)
    check_number("--bound", options.bound, above=0)
    check_number("--prior", options.prior, at_least=0)
    check_number("--seed", options.seed, at_least=0, whole=True)
    if options.population is not None:
        check_number("--population", options.population, at_least=2, whole=True)
