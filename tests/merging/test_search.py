"""Windows, profiles, soups and coordinates; and CMA-ES on them, on functions instead of files."""

import math

import numpy as np
import pytest

from dimred.errors import ConfigError
from dimred.merging.metric import Score
from dimred.merging.search import Coordinates, SearchOptions, greedy_soup, run_plain, run_soup, search, windows
from dimred.merging.trials import BudgetSpentError, Candidate, Trial
from tests.oracles import merge as oracle

STEPS = list(range(100, 1300, 100))


class Asked:
    """Trials of which only the coefficients count."""

    def __init__(self, score):
        self.done: dict[tuple[float, ...], Trial] = {}
        self._score = score

    def get(self, candidate: Candidate) -> Trial:
        value = self._score(np.array(candidate.coefficients))
        trial = Trial(len(self.done) + 1, candidate, "search", True, Score(value), None, 0.0)
        return self.done.setdefault(candidate.coefficients, trial)

    def signed(self, trial: Trial) -> float:
        return trial.score.value

    def ranked(self, *kinds: str) -> list[Trial]:
        chosen = [trial for trial in self.done.values() if trial.candidate.kind in kinds]
        return sorted(chosen, key=lambda trial: -trial.score.value)

    def names(self, kind: str) -> list[str]:
        return [trial.candidate.name for trial in self.done.values() if trial.candidate.kind == kind]


def near_500_to_900(coefficients: np.ndarray) -> float:
    return -abs(coefficients[4:9].sum() - 5) - coefficients.sum() / 100


def test_windows_end_at_four_checkpoints_and_have_the_newest_first() -> None:
    asked = Asked(near_500_to_900)
    run_plain(asked, STEPS)
    names = asked.names("window")
    assert names[:7] == ["1200", "1100-1200", "1000-1200", "800-1200", "500-1200", "100-1200", "900"]
    assert {name.split("-")[-1] for name in names} == {"1200", "900", "600", "300"}
    assert len(set(names)) == len(names) == 6 + 5 + 4 + 3
    for coefficients, trial in asked.done.items():
        if trial.candidate.kind == "window":
            first, last = (STEPS.index(int(trial.candidate.name.split("-")[place])) for place in (0, -1))
            assert np.flatnonzero(coefficients).tolist() == list(range(first, last + 1))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 60, 200])
def test_windows_are_few_and_include_the_mean_of_all(n: int) -> None:
    found = list(windows(n))
    assert (0, n) in found
    assert (n - 1, n) in found
    assert len(found) <= 45


def test_profiles_are_those_of_the_best_window() -> None:
    asked = Asked(near_500_to_900)
    run_plain(asked, STEPS)
    assert asked.ranked("window")[0].candidate.name == "500-900"
    assert asked.names("profile") == [
        "linear 500-900", "merge-decay=cosine 500-900", "merge-decay=1-sqrt 500-900",
        *(f"ema={width} 100-900" for width in (0.03, 0.05, 0.1, 0.15, 0.2)),
    ]  # fmt: skip
    linear = next(key for key, trial in asked.done.items() if trial.candidate.name == "linear 500-900")
    np.testing.assert_array_equal(linear, [0, 0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0])


def test_two_checkpoints_have_no_profiles() -> None:
    asked = Asked(lambda coefficients: 0.0)
    run_plain(asked, [10, 20])
    assert asked.names("window") == ["20", "10-20", "10"]
    assert asked.names("profile") == []


@pytest.mark.parametrize("n", [3, 16, 100])
def test_a_soup_is_made_of_sixteen_at_most(n: int) -> None:
    asked = Asked(lambda coefficients: 1.0)
    run_soup(asked, list(range(n)))
    assert len(asked.done) == 2 * min(n, 16) - 1
    assert any(trial.candidate.name == f"{n - 1}" for trial in asked.done.values())
    assert sum(list(asked.done)[-1]) == min(n, 16)


@pytest.mark.parametrize("seed", range(5))
def test_the_soup_is_that_of_the_paper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, target = rng.standard_normal((7, 4)), 0.3 * rng.standard_normal(4)

    def score(vector: np.ndarray) -> float:
        return -round(float(np.linalg.norm(vector - target)), 1)  # rounded, so that some are equal

    asked = []

    def of_coefficients(coefficients: tuple[float, ...]) -> float:
        asked.append(coefficients)
        return score(np.array(coefficients) @ vectors / sum(coefficients))

    members, reached = oracle.greedy_soup(vectors, score)
    found, best = greedy_soup(7, of_coefficients)
    assert set(np.flatnonzero(found)) == set(members)
    assert best == reached
    assert len(asked) == 2 * 7 - 1


def test_a_soup_leaves_out_what_failed() -> None:
    found, _ = greedy_soup(3, lambda coefficients: math.nan if coefficients[1] else 1.0)
    assert found == (1.0, 0.0, 1.0)


def test_coordinates_are_white_and_keep_the_sum() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((9, 3)) * [5, 1, 0.2] @ rng.standard_normal((3, 40)) + 7
    start = np.full(9, 1 / 9)
    coordinates = Coordinates(oracle.gram(list(vectors)), start, 8)
    assert coordinates.k == 3
    moved = []
    for direction in np.eye(3):
        candidate = coordinates.candidate(direction, "one")
        assert sum(candidate.coefficients) == pytest.approx(1)
        moved.append(np.array(candidate.coefficients) @ vectors - vectors.mean(axis=0))
    moved = np.array(moved)
    spread = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False)[:3] / math.sqrt(8)
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), spread)
    np.testing.assert_allclose(moved @ moved.T, np.diag(spread**2), atol=1e-9)
    assert Coordinates(oracle.gram(list(vectors)), start, 2).k == 2


def test_equal_checkpoints_span_nothing() -> None:
    assert Coordinates(np.zeros((3, 3)), np.full(3, 1 / 3), 8).k == 0


class Landscape:
    """A score of the point, as the search asks for it."""

    def __init__(self, score, budget: int = 300, k: int = 3):
        rng = np.random.default_rng(0)
        gram = oracle.gram(list(rng.standard_normal((6, 50))))
        self.coordinates = Coordinates(gram, np.full(6, 1 / 6), k)
        self.points: list[tuple[float, ...]] = []
        self._score, self._budget = score, budget

    def evaluate(self, candidate: Candidate) -> Trial:
        if len(self.points) == self._budget:
            raise BudgetSpentError
        self.points.append(candidate.point)
        value = self._score(np.array(candidate.point))
        score = None if math.isnan(value) else Score(value)
        return Trial(len(self.points), candidate, "search", True, score, None, 0.0)

    def run(self, unit: float = 0.0, standard_error: float = 0.0, **options):
        def signed(trial: Trial) -> float:
            return math.nan if trial.score is None else trial.score.value

        return search(self.evaluate, signed, self.coordinates, SearchOptions(**options), unit, standard_error)


TARGET = np.array([1.0, -0.5, 0.8])


def quadratic(point: np.ndarray) -> float:
    return -float(np.sum((point - TARGET) ** 2))


def test_the_search_finds_a_planted_point() -> None:
    (best, _, centre), ended = Landscape(quadratic).run()
    np.testing.assert_allclose(best.point, TARGET, atol=0.02)
    np.testing.assert_allclose(centre.point, TARGET, atol=0.02)
    assert ended == "the budget is spent"


def test_the_same_seed_asks_the_same_points_whatever_the_budget() -> None:
    runs = [Landscape(quadratic, budget) for budget in (40, 40, 90)]
    for one in runs:
        one.run(seed=3)
    other = Landscape(quadratic, 40)
    other.run(seed=4)
    assert runs[0].points == runs[1].points == runs[2].points[:40] != other.points


def test_every_point_is_within_the_bound() -> None:
    landscape = Landscape(lambda point: float(point.sum()))
    (best, _, centre), _ = landscape.run(bound=0.7)
    assert np.abs(landscape.points).max() <= 0.7
    assert best.point == pytest.approx([0.7] * 3, abs=0.01)
    assert np.abs(centre.point).max() <= 0.7


@pytest.mark.parametrize(("prior", "expected"), [(0.0, 1.0), (1.0, 0.75), (3.0, 0.5)])
def test_the_prior_pulls_to_the_start(prior: float, expected: float) -> None:
    """The maximum of -|z - t|^2 - prior |z|^2 / 3 is at t / (1 + prior / 3)."""
    (_, _, centre), _ = Landscape(quadratic).run(unit=1.0, prior=prior)
    np.testing.assert_allclose(centre.point, expected * TARGET, atol=0.02)


def test_it_ends_when_three_generations_gain_less_than_a_standard_error() -> None:
    landscape = Landscape(quadratic, 2000)
    (_, _, centre), ended = landscape.run(standard_error=1e-4)
    assert ended == "3 generations gained less than a standard error"
    assert len(landscape.points) < 500
    np.testing.assert_allclose(centre.point, TARGET, atol=0.03)
    flat = Landscape(lambda point: 1.0, 2000)
    flat.run(standard_error=0.1, population=6)
    assert len(flat.points) == 4 * 6


def test_failures_are_survived() -> None:
    (best, _, _), _ = Landscape(lambda point: math.nan if point[0] > 1.2 else quadratic(point)).run()
    np.testing.assert_allclose(best.point, TARGET, atol=0.05)


@pytest.mark.parametrize("options", [{"components": 0}, {"seed": -1}, {"bound": -1}, {"prior": -1}, {"population": 1}])
def test_options_have_ranges(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"--{next(iter(options))} is "):
        SearchOptions(**options).check()
