"""The averages to choose from: profiles, and windows of a series of checkpoints.

A profile says how much each checkpoint counts in the average sum(c_i x_i) / sum(c_i), oldest first.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dimred.curves import CURVES
from dimred.errors import ConfigError, check_type

_ENDS = 4  # windows end at the newest checkpoint, and a quarter, a half and three quarters back
_LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)
_NEWEST = (8, 13, 21)
PROFILES = (
    f"uniform, linear, exponential=DECAY, ema=WIDTH, merge-decay=CURVE ({', '.join(CURVES)}), or coefficients such as "
    "0.2,0.3,0.5"
)


def profile_coefficients(profile: str, steps: Sequence[int]) -> np.ndarray:
    """Compute the coefficients c of a window of N checkpoints.

    Args:
        profile: ``uniform``; ``linear``: N for the newest down to 1 for the oldest; ``exponential=DECAY``: a moving
            average with this decay from one checkpoint to the next; ``ema=WIDTH``: the power function average of EDM2
            (Karras et al., 2024), with WIDTH as a fraction of training; ``merge-decay=CURVE``: the coefficients by
            which WSM (Tian et al., 2025) imitates a learning rate that falls by that curve of ``CURVES``; or N numbers
            of at least 0 with the sum 1, separated by commas, which are returned as they are.
        steps: the checkpoints' steps, increasing.

    Returns:
        c, float64 (N,); their sum may be anything.

    Raises:
        ConfigError: the profile is unknown, or its value is not allowed.
    """
    check_type("profile", profile, str, f"one of {PROFILES}")
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
        curve = next((curve for key, curve in CURVES.items() if key == value), None)
        if curve is None:
            raise ConfigError(
                f"profile is {profile!r}; give {' or '.join(f'merge-decay={key}' for key in CURVES)}",
                argument="profile",
            )
        # Theorem of WSM (Tian et al., 2025, arXiv 2507.17634): c_0 = 1 - w_1, c_j = w_j - w_(j+1), c_k = w_k.
        return -np.diff([*curve(np.arange(n) / n), 0.0])
    return _explicit(profile, n)


def _power_function(width: float, steps: Sequence[int]) -> np.ndarray:
    """Compute how much each checkpoint counts in EDM2's power function average (Karras et al., 2024, arXiv 2312.02696).

    The average at step t follows a <- b a + (1 - b) x with b = (1 - dt / t)^(g + 1), its equation 127; so the
    checkpoint at t_i counts t_i^(g + 1) - t_(i-1)^(g + 1). The exponent g follows from the width, the profile's
    standard deviation as a fraction of training: width^2 = (g + 1) / ((g + 2)^2 (g + 3)), its equation 123.
    """
    inverse = width**-2
    exponent = np.roots([1, 7, 16 - inverse, 12 - inverse]).real.max()
    if len(steps) == 1:  # at step 0, perhaps
        return np.ones(1)
    before_first = max(2 * steps[0] - steps[1], 0)
    return np.diff((np.array([before_first, *steps]) / steps[-1]) ** (exponent + 1))


def gives_numbers(profile: str) -> bool:
    """Return whether a profile is a list of coefficients, one for each checkpoint, and not a rule by their age."""
    return profile[:1] in [*"+-.0123456789"]


def _explicit(profile: str, n: int) -> np.ndarray:
    try:
        coefficients = np.array([float(part) for part in profile.split(",")])
    except ValueError:
        raise ConfigError(f"profile is {profile!r}; allowed: {PROFILES}", argument="profile") from None
    if len(coefficients) != n:
        raise ConfigError(
            f"profile is {profile!r}, which has {len(coefficients)} coefficients for {n} checkpoints; give one for "
            "each",
            argument="profile",
        )
    total = float(coefficients.sum())
    if not math.isclose(total, 1, abs_tol=1e-6) or coefficients.min() < 0:
        raise ConfigError(
            f"profile is {profile!r}; coefficients must be at least 0 and sum to 1, not to {total:g}",
            argument="profile",
        )
    return coefficients


def _number(profile: str, text: str, sentence: str, is_allowed: Callable[[float], bool]) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not is_allowed(number):
        raise ConfigError(f"profile is {profile!r}; give {sentence}", argument="profile")
    return number


class Window(NamedTuple):
    """Some successive checkpoints of a series, and how much each of them counts.

    Attributes:
        first, end: numbers of the first checkpoint and of the one after the last; the oldest of the series is 0.
        profile: a profile for ``profile_coefficients``.
    """

    first: int
    end: int
    profile: str = "uniform"

    def coefficients(self, steps: Sequence[int]) -> np.ndarray:
        """Return how much each checkpoint of the series counts, float64 (N,); 0 outside the window.

        Args:
            steps: steps of all checkpoints of the series, oldest first.
        """
        values = np.zeros(len(steps))
        values[self.first : self.end] = profile_coefficients(self.profile, steps[self.first : self.end])
        return values

    def name(self, steps: Sequence[int]) -> str:
        """Return the window's name for logs and results; ``steps`` as for ``coefficients``."""
        length = self.end - self.first
        if length == 1:
            return f"the snapshot of step {steps[self.first]}"
        return f"{self.profile} of {length} snapshots, steps {steps[self.first]} to {steps[self.end - 1]}"


def effective_size(coefficients: np.ndarray) -> float:
    """Return how many equally weighted snapshots have a mean of the same variance: sum(c)^2 / sum(c^2) (Kish, 1965).

    Args:
        coefficients: c, (N,).
    """
    return float(coefficients.sum() ** 2 / (coefficients**2).sum())


def uniform_windows(n: int) -> list[Window]:
    """List uniform windows of n checkpoints, of the lengths 1, 2, 3, 5, 8, ... and n.

    They end at the newest checkpoint, and a quarter, a half and three quarters of the series back.
    """
    lengths = [*(length for length in _LENGTHS if length < n), n]
    ends = dict.fromkeys(n - back * n // _ENDS for back in range(_ENDS))
    return [Window(end - length, end) for end in ends for length in lengths if length <= end]


def newest_windows(n: int) -> list[Window]:
    """List the windows that a cooldown chooses among: the newest 8, 13 and 21 snapshots, and all n.

    On the stored choices of six tasks at three budgets these are as good as an earlier search of windows from coarse to
    fine, at half of the passes (``tests/studies/end_rule.md``).
    """
    lengths = [*(length for length in _NEWEST if length < n), n]
    return [Window(n - length, n) for length in lengths if length > 1]


def profiles_around(window: Window) -> list[Window]:
    """List other profiles with the same end as a uniform window, and with about half to twice its effective size.

    These are linear ones over its length and twice that, and moving averages from the first checkpoint on. A moving
    average of span L has the decay (L - 1) / (L + 1), and then the effective size of a uniform window of L; the spans
    are half, all and twice the window's length.
    """
    length = window.end - window.first
    end = window.end
    windows = [Window(max(end - reach, 0), end, "linear") for reach in (length, 2 * length) if min(reach, end) > 2]
    for span in sorted({max(length // 2, 2), length, 2 * length}):
        if span < end:
            windows.append(Window(0, end, f"exponential={(span - 1) / (span + 1):.3f}"))
    return list(dict.fromkeys(windows))
