"""Count, mean and sum of squared deviations of parts of a sample, and their merge, in NumPy.

Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances (1979):

    M = M_a + M_b + (mean_b - mean_a)^2 n_a n_b / n,   mean = mean_a + (mean_b - mean_a) n_b / n,   n = n_a + n_b
"""

from collections.abc import Iterable
from functools import reduce

import numpy as np

Moments = tuple[float, np.ndarray, np.ndarray]


def moments(x: np.ndarray) -> Moments:
    """Return n, mean and M for each channel of x, (N, C, ...)."""
    rows = np.moveaxis(x.astype(np.float64), 1, -1).reshape(-1, x.shape[1])
    return len(rows), rows.mean(0), ((rows - rows.mean(0)) ** 2).sum(0)


def merge(a: Moments, b: Moments) -> Moments:
    """Return the moments of two parts together, by the equations above."""
    n, delta = a[0] + b[0], b[1] - a[1]
    return n, a[1] + delta * b[0] / n, a[2] + b[2] + delta**2 * a[0] * b[0] / n


def mean_and_variance(parts: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and population variance of each channel over all parts."""
    n, mean, m2 = reduce(merge, map(moments, parts))
    return mean, m2 / n
