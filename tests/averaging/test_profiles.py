"""Profiles against their papers' recursions."""

import numpy as np
import pytest

from dimred.averaging.profiles import profile_coefficients
from dimred.errors import ConfigError
from tests.oracles import merge as oracle

STEPS = [1000, 2000, 3000, 4000, 5000, 6000]
VALUES = np.random.default_rng(0).standard_normal((6, 4))


def mean(profile: str, steps: list[int] = STEPS, values: np.ndarray = VALUES) -> np.ndarray:
    return oracle.weighted_mean(list(values), profile_coefficients(profile, steps).tolist())


def test_uniform_and_linear() -> None:
    np.testing.assert_array_equal(profile_coefficients("uniform", STEPS), np.ones(6))
    np.testing.assert_array_equal(profile_coefficients("linear", STEPS), [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9])
def test_exponential_is_the_moving_average_from_the_first(decay: float) -> None:
    average = VALUES[0]
    for value in VALUES[1:]:
        average = decay * average + (1 - decay) * value
    np.testing.assert_allclose(mean(f"exponential={decay}"), average, rtol=1e-12)


@pytest.mark.parametrize("exponent", [0.5, 3.0, 16.97, 40.0])
@pytest.mark.parametrize("steps", [STEPS, [7, 14, 15, 40, 41, 90]])
def test_ema_is_edm2s_running_average_of_that_width(exponent: float, steps: list[int]) -> None:
    width = oracle.power_function_width(exponent)
    expected = oracle.power_function_average(VALUES, steps, exponent)
    np.testing.assert_allclose(mean(f"ema={width}", steps), expected, rtol=1e-5, atol=1e-8)


def test_ema_of_a_run_that_was_joined_late_gives_its_first_checkpoint_no_more_than_its_share() -> None:
    early = profile_coefficients("ema=0.2", [50_000, 51_000, 52_000, 53_000])
    np.testing.assert_allclose(early / early.sum(), 0.25, rtol=0.1)


@pytest.mark.parametrize(
    ("shape", "decay"),
    [
        ("linear", lambda done: 1 - done),
        ("cosine", lambda done: 0.5 + 0.5 * np.cos(np.pi * done)),
        ("1-sqrt", lambda done: 1 - done**0.5),
    ],
)
def test_merge_decay_scales_each_update_by_its_decay(shape: str, decay) -> None:
    expected = oracle.decayed(VALUES, [decay(i / 6) for i in range(1, 6)])
    np.testing.assert_allclose(mean(f"merge-decay={shape}"), expected, rtol=1e-12)


def test_a_linear_decay_is_the_plain_mean() -> None:
    np.testing.assert_allclose(profile_coefficients("merge-decay=linear", STEPS), 1 / 6)


def test_explicit_coefficients() -> None:
    np.testing.assert_array_equal(profile_coefficients("1.5,-0.5", STEPS[:2]), [1.5, -0.5])


@pytest.mark.parametrize("profile", ["uniform", "linear", "exponential=0.5", "ema=0.1", "merge-decay=cosine", "1.0"])
def test_one_checkpoint_counts_whole(profile: str) -> None:
    np.testing.assert_allclose(mean(profile, [500], VALUES[:1]), VALUES[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("triangle", "--profile is 'triangle'; allowed: uniform, linear"),
        ("uniform=3", "--profile is 'uniform=3'"),
        ("exponential=1", "such as exponential=0.9"),
        ("ema=0.5", "a width above 0 and up to 0.28"),
        ("ema=wide", "'ema=wide'"),
        ("merge-decay=sqrt", "merge-decay=linear or merge-decay=cosine or merge-decay=1-sqrt"),
        ("0.5,0.5", "2 coefficients for 6 checkpoints"),
        ("0.5,0.5,0,0,0,0.1", "sum to 1.1; they must sum to 1"),
        ("nan,0,0,0,0,1", "sum to nan"),
    ],
)
def test_what_is_refused(profile: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        profile_coefficients(profile, STEPS)
    assert said in str(refused.value)
