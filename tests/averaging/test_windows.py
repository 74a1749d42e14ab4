"""The candidates of every choice: windows, and profiles around one."""

import numpy as np
import pytest

from dimred.averaging.windows import Window, effective_size, latest_windows, profiles_around, uniform_windows

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
    assert [window.end - window.first for window in latest_windows(9)] == [2, 3, 5, 8, 9]


def test_profiles_are_worth_about_as_many_checkpoints_as_the_window_they_stand_for() -> None:
    assert profiles_around(Window(20, 40)) == [
        Window(20, 40, "linear"),
        Window(0, 40, "linear"),
        Window(0, 40, "exponential=0.818"),
        Window(0, 40, "exponential=0.905"),
    ]
    assert profiles_around(Window(0, 2)) == []


def test_what_a_window_is() -> None:
    window = Window(4, 9, "linear")
    np.testing.assert_array_equal(window.coefficients(STEPS), [0, 0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0])
    assert window.name(STEPS) == "linear of 5 snapshots, steps 500 to 900"
    assert Window(4, 5).name(STEPS) == "the snapshot of step 500"
    assert effective_size(Window(4, 9).coefficients(STEPS)) == 5
    assert effective_size(window.coefficients(STEPS)) == pytest.approx(225 / 55)
