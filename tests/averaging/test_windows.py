"""The averages of every choice: windows, profiles around one, and the greedy soup."""

import math

import numpy as np
import pytest

from dimred.averaging.windows import (
    Window,
    effective_size,
    greedy_soup,
    halved_windows,
    measure_windows,
    profiles_around,
    uniform_windows,
)
from tests.oracles import merge as oracle

STEPS = list(range(100, 1300, 100))


def test_windows_end_at_four_checkpoints_the_newest_first() -> None:
    found = [(window.end, window.end - window.first) for window in uniform_windows(40, shortest=1, shortest_earlier=5)]
    assert found == [
        *((40, length) for length in (1, 2, 3, 5, 8, 13, 21, 34, 40)),
        *((30, length) for length in (5, 8, 13, 21)), *((20, length) for length in (5, 8, 13)), (10, 5), (10, 8),
    ]  # fmt: skip


@pytest.mark.parametrize("n", [1, 2, 3, 5, 60, 200])
def test_windows_are_few_and_include_the_newest_and_all(n: int) -> None:
    found = uniform_windows(n, shortest=1, shortest_earlier=1)
    assert {Window(0, n), Window(n - 1, n)} <= set(found)
    assert len(set(found)) == len(found) <= 45
    assert all(0 <= window.first < window.end <= n for window in found)
    assert uniform_windows(1) == uniform_windows(0) == []
    assert halved_windows(9) == [Window(7, 9), Window(5, 9), Window(0, 9)]


def measured(n: int, loss) -> list[Window]:
    """The windows that are measured, in their order."""
    found: list[Window] = []
    measure_windows(n, lambda window: found.append(window) or float(loss(window)))
    assert len(set(found)) == len(found)
    return found


@pytest.mark.parametrize("n", [1, 2, 3, 5, 40, 60, 200])
@pytest.mark.parametrize("best", [1, 2, 5, 13, 34, 200])
def test_the_best_of_all_lengths_is_measured_from_coarse_to_fine(n: int, best: int) -> None:
    def loss(window: Window) -> float:
        return abs(math.log((window.end - window.first) / best)) + (n - window.end)

    found = [window for window in measured(n, loss) if window.profile == "uniform"]
    assert min(map(loss, found)) == min(map(loss, [Window(n - 1, n), *uniform_windows(n)]))
    assert len(found) <= 10


def test_windows_are_tried_further_back_while_that_is_better_and_a_linear_one_around_the_best() -> None:
    found = measured(40, lambda window: window.end + abs(window.end - window.first - 8) / 10)
    assert found[-4:] == [Window(22, 30), Window(12, 20), Window(2, 10), Window(0, 10, "linear")]
    found = measured(40, lambda window: -window.end + abs(window.end - window.first - 8) / 10)
    assert found[-2:] == [Window(22, 30), Window(24, 40, "linear")]
    found = measured(40, lambda window: window.end - (window.end - window.first) / 100)  # all 40 are the best length
    assert found[-4:-1] == [Window(9, 30), Window(7, 20), Window(2, 10)]
    assert measured(1, lambda window: 0.0) == [Window(0, 1)]


def test_profiles_are_worth_about_as_many_checkpoints_as_the_window_they_stand_for() -> None:
    assert profiles_around(Window(20, 40)) == [
        Window(20, 40, "linear"),
        Window(0, 40, "linear"),
        Window(0, 40, "exponential=0.818"),
        Window(0, 40, "exponential=0.905"),
    ]
    assert profiles_around(Window(0, 2)) == []


def test_coefficients_name_and_size_of_a_window() -> None:
    window = Window(4, 9, "linear")
    np.testing.assert_array_equal(window.coefficients(STEPS), [0, 0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0])
    assert window.name(STEPS) == "linear of 5 snapshots, steps 500 to 900"
    assert Window(4, 5).name(STEPS) == "the snapshot of step 500"
    assert effective_size(Window(4, 9).coefficients(STEPS)) == 5
    assert effective_size(window.coefficients(STEPS)) == pytest.approx(225 / 55)


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
