"""Profiles: how much each checkpoint counts in the average sum(c_i x_i) / sum(c_i), oldest first."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from dimred.errors import ConfigError

PROFILES = "uniform, linear, exponential=DECAY, ema=WIDTH, merge-decay=SHAPE, or coefficients such as 0.2,0.3,0.5"


def profile_coefficients(profile: str, steps: Sequence[int]) -> np.ndarray:
    """Compute the coefficients c of a window of N checkpoints.

    Args:
        profile: ``uniform``; ``linear``: falling to the oldest, N to 1; ``exponential=DECAY``: a moving average with
            this decay from one checkpoint to the next; ``ema=WIDTH``: the power function average of EDM2;
            ``merge-decay=SHAPE``: WSM's, for the decay ``linear``, ``cosine`` or ``1-sqrt``; or N numbers with commas
            between.
        steps: of the checkpoints, growing.

    Returns:
        c, float64 (N,), of any sum.

    Raises:
        ConfigError: no such profile, or a value that is not allowed.
    """
    name, _, value = profile.partition("=")
    n = len(steps)
    if name == "uniform" and not value:
        return np.ones(n)
    if name == "linear" and not value:
        return np.arange(1.0, n + 1)
    if name == "exponential":
        decay = _number(
            profile, value, "a decay of at least 0 and below 1, such as exponential=0.9", lambda x: 0 <= x < 1
        )
        return np.array([decay ** (n - 1), *((1 - decay) * decay ** (n - 1 - i) for i in range(1, n))])
    if name == "ema":
        sentence = "a width above 0 and up to 0.28, such as ema=0.1"
        return _power_function(_number(profile, value, sentence, lambda x: 0 < x <= 0.28), steps)
    if name == "merge-decay":
        if value not in _DECAYS:
            raise ConfigError(f"--profile is {profile!r}; give {' or '.join(f'merge-decay={key}' for key in _DECAYS)}")
        # Theorem of WSM (Tian et al., 2025, arXiv 2507.17634): c_0 = 1 - w_1, c_j = w_j - w_(j+1), c_k = w_k.
        factors = [*(_DECAYS[value](i / n) for i in range(n)), 0.0]
        return -np.diff(factors)
    return _explicit(profile, n)


_DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "1-sqrt": lambda done: 1 - math.sqrt(done),
}


def _power_function(width: float, steps: Sequence[int]) -> np.ndarray:
    """Compute how much each checkpoint counts in EDM2's power function average (Karras et al., 2024, arXiv 2312.02696).

    The average at step t follows a <- b a + (1 - b) x with b = (1 - dt / t)^(g + 1), its equation 127; so the
    checkpoint at t_i counts t_i^(g + 1) - t_(i-1)^(g + 1). The exponent g belongs to the width, the profile's standard
    deviation as a share of training: width^2 = (g + 1) / ((g + 2)^2 (g + 3)), its equation 123.
    """
    inverse = width**-2
    exponent = np.roots([1, 7, 16 - inverse, 12 - inverse]).real.max()
    before_first = max(2 * steps[0] - steps[1], 0) if len(steps) > 1 else 0
    times = np.array([before_first, *steps], np.float64) / steps[-1]
    return np.diff(times ** (exponent + 1))


def _explicit(profile: str, n: int) -> np.ndarray:
    try:
        coefficients = np.array([float(part) for part in profile.split(",")])
    except ValueError:
        raise ConfigError(f"--profile is {profile!r}; allowed: {PROFILES}") from None
    if len(coefficients) != n:
        raise ConfigError(f"--profile has {len(coefficients)} coefficients for {n} checkpoints; give one for each")
    total = float(coefficients.sum())
    if not math.isclose(total, 1, abs_tol=1e-6):
        raise ConfigError(
            f"--profile has coefficients that sum to {total:g}; they must sum to 1, or weights would be scaled"
        )
    return coefficients


def _number(profile: str, text: str, sentence: str, allowed: Callable[[float], bool]) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not allowed(number):
        raise ConfigError(f"--profile is {profile!r}; give {sentence}")
    return number
