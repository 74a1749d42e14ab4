"""One table of curves: schedules, cooldowns and the profiles of a merge have the same names."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from dimred.averaging.windows import PROFILES, profile_coefficients
from dimred.config import CooldownConfig, ScheduleConfig
from dimred.curves import CURVES, CurveName
from dimred.train_step.schedule import make_rates, with_cooldown
from tests.helpers.commands import dimred_here


def test_the_type_names_every_curve() -> None:
    assert get_args(CurveName) == tuple(CURVES)


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_is_the_same_for_a_schedule_a_cooldown_and_a_profile(name: Any) -> None:
    """An average by merge-decay counts each update as the decaying rate would (its coefficients' partial sums)."""
    left = [*(CURVES[name](i / 8) for i in range(8)), 0.0]
    assert left[0] == 1
    assert CURVES[name](1.0) == pytest.approx(0, abs=1e-15)
    assert CooldownConfig(schedule=name).schedule == ScheduleConfig(name=name).name == name
    np.testing.assert_allclose(make_rates(name, 1.0, 0, 8), left[:-1], rtol=1e-6)
    np.testing.assert_allclose(with_cooldown(np.ones(1), 0, 8, name), left[:-1], rtol=1e-6)
    coefficients = profile_coefficients(f"merge-decay={name}", range(1, 9))
    np.testing.assert_allclose(np.cumsum(coefficients[::-1])[::-1], left[:-1], rtol=1e-12, atol=1e-12)


def test_the_help_lists_every_profile_and_curve(tmp_path: Path) -> None:
    text = " ".join(dimred_here("merge", "--help", status=0).stdout.replace("│", " ").split())
    assert PROFILES in text
    assert ", ".join(CURVES) in PROFILES
