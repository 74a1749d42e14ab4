"""Classic problems of unconstrained minimisation, in NumPy, with gradients by the complex step.

Moré, Garbow and Hillstrom, Testing Unconstrained Optimization Software, ACM TOMS 7 (1981), whose numbers stand in
parentheses and whose starts and least values are used; and quadratics. The gradient is Im f(x + i h e_j) / h, which has
no cancellation (Squire and Trapp, Using Complex Variables to Estimate Derivatives of Real Functions, 1998).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_STEP = 1e-30


class Problem(NamedTuple):
    """A problem of minimisation.

    Attributes:
        function: a vector x, real or complex, (n,) -> f(x).
        start: the point to begin at, (n,).
        least: the least value of f; if it has several minima, that of the one to which a descent from ``start`` leads.
    """

    function: Callable[[np.ndarray], np.ndarray]
    start: np.ndarray
    least: float

    def value(self, x: np.ndarray) -> float:
        """Return f(x)."""
        with np.errstate(all="ignore"):
            return float(self.function(np.asarray(x, np.float64)))

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Return the gradient at x, exact to rounding."""
        nudged = np.asarray(x, np.float64) + 1j * _STEP * np.eye(len(x))
        with np.errstate(all="ignore"):
            return np.array([self.function(row).imag for row in nudged]) / _STEP


def _squares(residuals: Callable[[np.ndarray], np.ndarray], start: list[float] | np.ndarray, least: float = 0.0):
    return Problem(lambda x: (residuals(x) ** 2).sum(), np.array(start, np.float64), least)


def _rosenbrock(x):
    return np.concatenate([10 * (x[1::2] - x[::2] ** 2), 1 - x[::2]])


def _freudenstein_roth(x):
    return np.array([-13 + x[0] + ((5 - x[1]) * x[1] - 2) * x[1], -29 + x[0] + ((x[1] + 1) * x[1] - 14) * x[1]])


def _powell_badly_scaled(x):
    return np.array([1e4 * x[0] * x[1] - 1, np.exp(-x[0]) + np.exp(-x[1]) - 1.0001])


def _brown_badly_scaled(x):
    return np.array([x[0] - 1e6, x[1] - 2e-6, x[0] * x[1] - 2])


def _beale(x):
    return np.array([1.5, 2.25, 2.625]) - x[0] * (1 - x[1] ** np.arange(1, 4))


def _jennrich_sampson(x):
    i = np.arange(1, 11)
    return 2 + 2 * i - np.exp(i * x[0]) - np.exp(i * x[1])


def _helical_valley(x):
    turn = np.arctan(x[1] / x[0]) / (2 * np.pi) + (0.5 if x[0].real < 0 else 0.0)
    return np.array([10 * (x[2] - 10 * turn), 10 * (np.sqrt(x[0] ** 2 + x[1] ** 2) - 1), x[2]])


def _bard(x):
    y = np.array([0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96, 1.34, 2.10, 4.39])
    u = np.arange(1, 16)
    v = 16 - u
    return y - (x[0] + u / (v * x[1] + np.minimum(u, v) * x[2]))


def _gaussian(x):
    y = np.array([9, 44, 175, 540, 1295, 2420, 3521, 3989, 3521, 2420, 1295, 540, 175, 44, 9]) / 1e4
    t = (8 - np.arange(1, 16)) / 2
    return x[0] * np.exp(-x[1] * (t - x[2]) ** 2 / 2) - y


def _box(x):
    t = np.arange(1, 11) / 10
    return np.exp(-t * x[0]) - np.exp(-t * x[1]) - x[2] * (np.exp(-t) - np.exp(-10 * t))


def _powell_singular(x):
    a, b, c, d = x[::4], x[1::4], x[2::4], x[3::4]
    return np.concatenate([a + 10 * b, 5**0.5 * (c - d), (b - 2 * c) ** 2, 10**0.5 * (a - d) ** 2])


def _wood(x):
    return np.array(
        [
            10 * (x[1] - x[0] ** 2),
            1 - x[0],
            90**0.5 * (x[3] - x[2] ** 2),
            1 - x[2],
            10**0.5 * (x[1] + x[3] - 2),
            10**-0.5 * (x[1] - x[3]),
        ]
    )


def _kowalik_osborne(x):
    y = np.array([1957, 1947, 1735, 1600, 844, 627, 456, 342, 323, 235, 246]) / 1e4
    u = np.array([4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625])
    return y - x[0] * (u**2 + u * x[1]) / (u**2 + u * x[2] + x[3])


def _brown_dennis(x):
    t = np.arange(1, 21) / 5
    return (x[0] + t * x[1] - np.exp(t)) ** 2 + (x[2] + x[3] * np.sin(t) - np.cos(t)) ** 2


def _biggs(x):
    t = np.arange(1, 14) / 10
    y = np.exp(-t) - 5 * np.exp(-10 * t) + 3 * np.exp(-4 * t)
    return x[2] * np.exp(-t * x[0]) - x[3] * np.exp(-t * x[1]) + x[5] * np.exp(-t * x[4]) - y


def _watson(x):
    t, j = np.arange(1, 30)[:, None] / 29, np.arange(len(x))
    slope = (j[1:] * t ** (j[1:] - 1)) @ x[1:]
    return np.concatenate([slope - (t**j @ x) ** 2 - 1, [x[0], x[1] - x[0] ** 2 - 1]])


def _penalty_1(x):
    return np.concatenate([1e-5**0.5 * (x - 1), [(x**2).sum() - 0.25]])


def _variably_dimensioned(x):
    sum_ = (np.arange(1, len(x) + 1) * (x - 1)).sum()
    return np.concatenate([x - 1, [sum_, sum_**2]])


def _trigonometric(x):
    n, i = len(x), np.arange(1, len(x) + 1)
    return n - np.cos(x).sum() + i * (1 - np.cos(x)) - np.sin(x)


def _brown_almost_linear(x):
    return np.concatenate([x[:-1] + x.sum() - (len(x) + 1), [x.prod() - 1]])


def _discrete_boundary_value(x):
    n = len(x)
    h, t = 1 / (n + 1), np.arange(1, n + 1) / (n + 1)
    padded = np.concatenate([[0], x, [0]])
    return 2 * x - padded[:-2] - padded[2:] + h**2 * (x + t + 1) ** 3 / 2


def _broyden_tridiagonal(x):
    padded = np.concatenate([[0], x, [0]])
    return (3 - 2 * x) * x - padded[:-2] - 2 * padded[2:] + 1


def _linear(x):
    return np.concatenate([x - 2 * x.sum() / 20 - 1, np.full(20 - len(x), -2 * x.sum() / 20 - 1)])


def _chebyquad(x):
    y, n = 2 * x - 1, len(x)
    values = [np.ones_like(y), y]
    for _ in range(n - 1):
        values.append(2 * y * values[-1] - values[-2])
    integrals = np.array([0 if i % 2 else -1 / (i**2 - 1) for i in range(1, n + 1)])
    return np.array([v.mean() for v in values[1:]]) - integrals


def _quadratic(scales: np.ndarray) -> Problem:
    return Problem(lambda x: (scales * x**2).sum() / 2, np.ones(len(scales)), 0.0)


_N = np.arange(1, 11)
PROBLEMS = {
    "Rosenbrock (1)": _squares(_rosenbrock, [-1.2, 1]),
    "Freudenstein and Roth (2)": _squares(_freudenstein_roth, [0.5, -2], 48.98425),
    "Powell, badly scaled (3)": _squares(_powell_badly_scaled, [0, 1]),
    "Brown, badly scaled (4)": _squares(_brown_badly_scaled, [1, 1]),
    "Beale (5)": _squares(_beale, [1, 1]),
    "Jennrich and Sampson (6)": _squares(_jennrich_sampson, [0.3, 0.4], 124.362),
    "helical valley (7)": _squares(_helical_valley, [-1, 0, 0]),
    "Bard (8)": _squares(_bard, [1, 1, 1], 8.21487e-3),
    "Gaussian (9)": _squares(_gaussian, [0.4, 1, 0], 1.12793e-8),
    "Box (12)": _squares(_box, [0, 10, 20]),
    "Powell, singular (13)": _squares(_powell_singular, [3, -1, 0, 1]),
    "Wood (14)": _squares(_wood, [-3, -1, -3, -1]),
    "Kowalik and Osborne (15)": _squares(_kowalik_osborne, [0.25, 0.39, 0.415, 0.39], 3.07505e-4),
    "Brown and Dennis (16)": _squares(_brown_dennis, [25, 5, -5, -1], 85822.2),
    "Biggs (18)": _squares(_biggs, [1, 2, 1, 1, 1, 1], 5.65565e-3),
    "Watson (20)": _squares(_watson, np.zeros(6), 2.28767e-3),
    "Rosenbrock, extended (21)": _squares(_rosenbrock, [-1.2, 1] * 5),
    "penalty (23)": _squares(_penalty_1, _N[:4], 2.24997e-5),
    "variably dimensioned (25)": _squares(_variably_dimensioned, 1 - _N / 10),
    "trigonometric (26)": _squares(_trigonometric, np.full(10, 0.1), 2.79506e-5),
    "Brown, almost linear (27)": _squares(_brown_almost_linear, np.full(10, 0.5)),
    "discrete boundary value (28)": _squares(_discrete_boundary_value, _N / 11 * (_N / 11 - 1)),
    "Broyden, tridiagonal (30)": _squares(_broyden_tridiagonal, np.full(10, -1.0)),
    "Chebyquad (35)": _squares(_chebyquad, np.arange(1, 8) / 8),
    "quadratic of condition 1e4": _quadratic(np.geomspace(1e-2, 1e2, 10)),
}
