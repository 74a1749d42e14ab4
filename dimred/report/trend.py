"""Draw the values of many steps so that their course shows: points or a band, and their running mean."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MOST_POINTS = 300  # that are drawn one by one; more make a cloud, and a large file
_N_WINDOWS = 150  # of a band
_BAND = (10, 90)  # percentiles


def column(steps: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """Return the values of one key in records of metrics, float64 (n,), with NaN for None."""
    return np.array([np.nan if step[key] is None else step[key] for step in steps], np.float64)


def mean_width(n_values: int) -> int:
    """Return over how many values the running mean goes: an odd number, about a fifteenth of all, at least 5."""
    return max(5, n_values // 15 | 1)


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Return the mean of the ``width`` values around each value, of those that exist and are finite; else NaN.

        mean_i = sum of finite values_j / their number,   |i - j| <= width // 2

    Args:
        values: (n,).
        width: an odd number.
    """
    is_finite = np.isfinite(values)
    sums, counts = (np.cumsum([0.0, *numbers]) for numbers in (np.where(is_finite, values, 0.0), is_finite))
    places = np.arange(len(values))
    first, end = np.maximum(places - width // 2, 0), np.minimum(places + width // 2 + 1, len(values))
    n_finite = counts[end] - counts[first]
    return np.where(n_finite > 0, (sums[end] - sums[first]) / np.maximum(n_finite, 1), np.nan)


def thinned(n_values: int, most: int = MOST_POINTS) -> np.ndarray:
    """Return the places of at most ``most`` evenly spaced values of n, the first and the last among them."""
    return np.unique(np.linspace(0, n_values - 1, min(n_values, most)).round().astype(int))


def band(numbers: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where the middle 80 % of the values lie, window by window.

    Args:
        numbers: of the steps, (n,), increasing.
        values: of the steps, (n,).

    Returns:
        The windows' mean numbers, and the 10th and the 90th percentile of their finite values, each (m,).
    """
    windows = []
    for place in np.array_split(np.arange(len(values)), _N_WINDOWS):
        finite = place[np.isfinite(values[place])]
        if finite.size:
            windows.append([numbers[finite].mean(), *np.percentile(values[finite], _BAND)])
    middle, low, high = np.reshape(windows, (-1, 3)).T
    return middle, low, high


def draw_trend(axes: Any, numbers: np.ndarray, values: np.ndarray, colour: str, label: str = "") -> None:
    """Draw values (n,) over step numbers (n,): each as a point, or a band of the middle 80 %, and the running mean."""
    if len(values) <= MOST_POINTS:
        axes.plot(numbers, values, "o", color=colour, ms=2.5, mew=0, alpha=0.4)
    else:
        axes.fill_between(*band(numbers, values), color=colour, alpha=0.25, lw=0)
    places, mean = thinned(len(values)), running_mean(values, mean_width(len(values)))
    axes.plot(numbers[places], mean[places], color=colour, lw=1.6, label=label)


def trend_in_words(n_values: int) -> str:
    """Explain what ``draw_trend`` has drawn of n values, for a caption."""
    shown = "Points: each step" if n_values <= MOST_POINTS else "Band: the middle 80 % of neighbouring steps"
    return f"{shown}; line: mean of {mean_width(n_values)} steps."
