"""Draw values over many steps, as points or a band, with their running mean, to show the trend."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

MOST_POINTS = 300  # drawn one by one; more make a cloud, and a large file
_N_WINDOWS = 150  # in a band
_BAND = (10, 90)  # percentiles


def column(records: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """Return one key's values in metrics records, float64 (n,), with NaN for None."""
    return np.array([np.nan if record[key] is None else record[key] for record in records], np.float64)


def mean_width(n_values: int) -> int:
    """Return how many of n values each running mean includes: an odd number, about n / 15, at least 5."""
    return max(5, n_values // 15 | 1)


def running_mean(values: np.ndarray, width: int, places: Iterable[int]) -> np.ndarray:
    """Return the mean of the finite values in a window of ``width`` around each place; NaN where none is finite.

        mean_i = sum of finite values_j / their number,   |i - j| <= width // 2

    Each window is summed separately: a difference between running sums would lose all digits after one huge value.

    Args:
        values: (n,).
        width: an odd number.
        places: the i, from 0.
    """
    windows = (values[max(place - width // 2, 0) : place + width // 2 + 1] for place in places)
    finite = (window[np.isfinite(window)] for window in windows)
    return np.array([window.mean() if window.size else np.nan for window in finite])


def places_to_draw(n_values: int) -> np.ndarray:
    """Return the indices of up to ``MOST_POINTS`` evenly spaced values out of n, including the first and the last."""
    return np.unique(np.linspace(0, n_values - 1, min(n_values, MOST_POINTS)).round().astype(int))


def band(numbers: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where the middle 80 % of the values lie, window by window.

    Args:
        numbers: the steps' numbers, (n,), increasing.
        values: the steps' values, (n,); those that are not finite are left out.

    Returns:
        The windows' mean step numbers, and the 10th and 90th percentiles of their finite values, each (m,).
    """
    windows = []
    for window in np.array_split(np.arange(len(values)), _N_WINDOWS):
        finite = window[np.isfinite(values[window])]
        if finite.size:
            windows.append([numbers[finite].mean(), *np.percentile(values[finite], _BAND)])
    middle, low, high = np.reshape(windows, (-1, 3)).T
    return middle, low, high


def draw_trend(axes: Any, numbers: np.ndarray, values: np.ndarray, colour: str, label: str = "") -> None:
    """Draw the steps' values and their running mean.

    Up to ``MOST_POINTS`` values are drawn as points, more as a band that holds the middle 80 % of neighbouring values.

    Args:
        axes: the matplotlib axes to draw on.
        numbers: the steps' numbers, (n,), increasing.
        values: their values, (n,).
        colour: colour of points, band and line.
        label: the running mean's label in a legend.
    """
    if len(values) <= MOST_POINTS:
        axes.plot(numbers, values, "o", color=colour, ms=2.5, mew=0, alpha=0.4)
    else:
        axes.fill_between(*band(numbers, values), color=colour, alpha=0.25, lw=0)
    places = places_to_draw(len(values))
    mean = running_mean(values, mean_width(len(values)), places)
    axes.plot(numbers[places], mean, color=colour, lw=1.6, label=label)


def trend_in_words(n_values: int) -> str:
    """Explain the marks that ``draw_trend`` draws for n values, for a caption."""
    marks = "Points: each step" if n_values <= MOST_POINTS else "Band: the middle 80 % of neighbouring steps"
    return f"{marks}; line: mean of {mean_width(n_values)} steps."
