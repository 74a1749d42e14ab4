"""The averages that are candidates: profiles against their papers' recursions, and windows."""

import numpy as np
import pytest

from dimred.averaging.windows import (
    Window,
    effective_size,
    gives_numbers,
    newest_windows,
    profile_coefficients,
    profiles_around,
    uniform_windows,
)
from dimred.errors import ConfigError
from tests.oracles import merge as oracle

STEPS = [1000, 2000, 3000, 4000, 5000, 6000]
VALUES = np.random.default_rng(0).standard_normal((6, 4))


def mean(profile: str, steps: list[int] = STEPS, values: np.ndarray = VALUES) -> np.ndarray:
    return oracle.weighted_mean(list(values), profile_coefficients(profile, steps).tolist())


@pytest.mark.parametrize(
    ("profile", "steps", "answer"),
    [
        ("uniform", STEPS, [1, 1, 1, 1, 1, 1]),
        ("linear", STEPS, [1, 2, 3, 4, 5, 6]),
        ("merge-decay=linear", STEPS, np.full(6, 1 / 6)),
        ("0.75,0.25", STEPS[:2], [0.75, 0.25]),
        ("0,1", STEPS[:2], [0, 1]),
    ],
)
def test_profiles_with_a_closed_form_have_its_coefficients(profile: str, steps: list[int], answer: list[float]) -> None:
    np.testing.assert_allclose(profile_coefficients(profile, steps), answer)


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9])
def test_exponential_is_the_moving_average_from_the_first(decay: float) -> None:
    average = VALUES[0]
    for value in VALUES[1:]:
        average = decay * average + (1 - decay) * value
    np.testing.assert_allclose(mean(f"exponential={decay}"), average, rtol=1e-12)


@pytest.mark.parametrize("exponent", [0.5, 3.0, 16.97, 40.0])
@pytest.mark.parametrize("steps", [STEPS, [7, 14, 15, 40, 41, 90], [10, 40], [10, 40, 50]])
def test_ema_is_edm2s_running_average_of_that_width(exponent: float, steps: list[int]) -> None:
    width, values = oracle.power_function_width(exponent), VALUES[: len(steps)]
    answer = oracle.power_function_average(values, steps, exponent)
    np.testing.assert_allclose(mean(f"ema={width}", steps, values), answer, rtol=1e-5, atol=1e-8)


def test_the_widest_ema_counts_all_checkpoints_nearly_alike() -> None:
    """The width of a uniform average is 1 / sqrt(12), 0.289."""
    assert effective_size(profile_coefficients("ema=0.28", STEPS)) == pytest.approx(6, abs=0.2)


def test_a_narrow_ema_of_steps_far_apart_is_finite() -> None:
    """Relative to any step but the newest, the 97th powers would overflow."""
    coefficients = profile_coefficients("ema=0.01", [0, 1000, 2000, 20_000_000])
    np.testing.assert_allclose(coefficients / coefficients.sum(), [0, 0, 0, 1], atol=1e-12)


@pytest.mark.parametrize("profile", ["0.7,0.3", ".5,.5", "-1,2", "+1", "uniform", "ema=0.1", ""])
def test_a_list_of_coefficients_is_told_from_a_rule(profile: str) -> None:
    assert gives_numbers(profile) is not (profile in ("uniform", "ema=0.1", ""))


def test_ema_of_a_run_that_was_joined_late_gives_its_first_checkpoint_no_more_than_its_share() -> None:
    early = profile_coefficients("ema=0.2", [50_000, 51_000, 52_000, 53_000])
    np.testing.assert_allclose(early / early.sum(), 0.25, rtol=0.1)


@pytest.mark.parametrize(
    ("shape", "decay"),
    [
        ("linear", lambda fraction: 1 - fraction),
        ("cosine", lambda fraction: 0.5 + 0.5 * np.cos(np.pi * fraction)),
        ("1-sqrt", lambda fraction: 1 - fraction**0.5),
    ],
)
def test_merge_decay_scales_each_update_by_its_decay(shape: str, decay) -> None:
    answer = oracle.decayed(VALUES, [decay(i / 6) for i in range(1, 6)])
    np.testing.assert_allclose(mean(f"merge-decay={shape}"), answer, rtol=1e-12)


@pytest.mark.parametrize("profile", ["uniform", "linear", "exponential=0.5", "ema=0.1", "merge-decay=cosine", "1.0"])
def test_a_single_checkpoint_is_its_own_average(profile: str) -> None:
    for step in (500, 0):
        np.testing.assert_allclose(mean(profile, [step], VALUES[:1]), VALUES[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("triangle", "profile is 'triangle'; allowed: uniform, linear"),
        ("uniform=3", "profile is 'uniform=3'"),
        ("", "profile is ''; allowed: uniform"),
        (3, "profile is 3; it must be one of uniform"),
        ("exponential=1", "such as exponential=0.9"),
        ("exponential=-0.1", "a decay of at least 0 and below 1"),
        ("ema=0", "a width above 0 and up to 0.28"),
        ("ema=0.5", "a width above 0 and up to 0.28"),
        ("ema=wide", "'ema=wide'"),
        ("merge-decay=sqrt", "merge-decay=linear or merge-decay=cosine or merge-decay=1-sqrt"),
        ("0.5,0.5", "2 coefficients for 6 checkpoints"),
        ("0.5,0.5,0,0,0,0.1", "coefficients must be at least 0 and sum to 1, not to 1.1"),
        ("-0.5,0,0,0,0,1.5", "coefficients must be at least 0"),
        ("nan,0,0,0,0,1", "not to nan"),
    ],
)
def test_a_wrong_profile_is_refused(profile: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        profile_coefficients(profile, STEPS)
    assert words in str(error.value)


def test_windows_end_at_four_checkpoints_the_newest_first() -> None:
    result = [(window.end, window.end - window.first) for window in uniform_windows(40)]
    lengths = (1, 2, 3, 5, 8, 13, 21, 34, 40)
    assert result == [(end, length) for end in (40, 30, 20, 10) for length in lengths if length <= end]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 60, 200])
def test_windows_are_few_and_include_the_newest_and_all(n: int) -> None:
    result = uniform_windows(n)
    assert {Window(0, n), Window(n - 1, n)} <= set(result)
    assert len(set(result)) == len(result) <= 45
    assert all(0 <= window.first < window.end <= n for window in result)
    assert all(isinstance(window.end, int) for window in result)  # they index the checkpoints


def test_a_cooldown_chooses_among_four_averages_of_the_newest_snapshots() -> None:
    lengths = {n: [window.end - window.first for window in newest_windows(n)] for n in (0, 1, 2, 8, 9, 40)}
    assert lengths == {0: [], 1: [], 2: [2], 8: [8], 9: [8, 9], 40: [8, 13, 21, 40]}
    assert {window.end for window in newest_windows(40)} == {40}


def test_profiles_are_worth_about_as_many_checkpoints_as_the_window_they_stand_for() -> None:
    assert profiles_around(Window(20, 40)) == [
        Window(20, 40, "linear"),
        Window(0, 40, "linear"),
        Window(0, 40, "exponential=0.818"),
        Window(0, 40, "exponential=0.905"),
    ]
    assert profiles_around(Window(3, 8)) == [
        Window(3, 8, "linear"),
        Window(0, 8, "linear"),
        Window(0, 8, "exponential=0.333"),
        Window(0, 8, "exponential=0.667"),
    ]
    assert profiles_around(Window(7, 10))[2:] == [
        Window(0, 10, "exponential=0.333"),
        Window(0, 10, "exponential=0.500"),
        Window(0, 10, "exponential=0.714"),
    ]
    assert profiles_around(Window(0, 3)) == [Window(0, 3, "linear"), Window(0, 3, "exponential=0.333")]
    assert profiles_around(Window(0, 2)) == []


def test_coefficients_name_and_size_of_a_window() -> None:
    steps, window = list(range(100, 1300, 100)), Window(4, 9, "linear")
    np.testing.assert_array_equal(window.coefficients(steps), [0, 0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0])
    assert window.name(steps) == "linear of 5 snapshots, steps 500 to 900"
    assert Window(4, 5).name(steps) == "the snapshot of step 500"
    assert effective_size(Window(4, 9).coefficients(steps)) == 5
    assert effective_size(window.coefficients(steps)) == pytest.approx(225 / 55)
