"""A line of two networks makes the steps of its NumPy twin, and ends at its midpoint."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from tests.studies.line import BETA, Line


def _pull(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the gradient of the squared cosine of two vectors with respect to the first."""
    inner, of_one, of_other = one @ other, one @ one, other @ other
    return BETA * (2 * inner * other / (of_one * of_other) - 2 * inner**2 * one / (of_one**2 * of_other))


def test_a_line_makes_the_steps_of_its_definition_and_ends_at_its_midpoint() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    shapes = {"matrix": (2, 3), "bias": (3,)}
    rng = np.random.default_rng(2)
    weights = [Parameter(Tensor(rng.normal(size=shape), ms.float32), name=name) for name, shape in shapes.items()]
    rates = [0.1 / step for step in range(1, 6)]
    optimizer = Line(weights, rates, weight_decay=0.01)
    flat = np.concatenate([weight.asnumpy().ravel() for weight in weights]).astype(np.float64)
    first, second = (np.concatenate([end.asnumpy().ravel() for end in ends]).astype(np.float64)
                     for ends in (optimizer.first, optimizer.second))  # fmt: skip
    np.testing.assert_array_equal(first, flat)
    assert (second[:6] != first[:6]).any()
    np.testing.assert_array_equal(np.sort(second[:6]), np.sort(first[:6]))
    at = optimizer.at.asnumpy().astype(np.float64)
    moments = [np.zeros(9), np.zeros(9)]
    for step, rate in enumerate(rates):
        gradient = np.sin(np.arange(9) + step)
        optimizer((Tensor(gradient[:6].reshape(2, 3), ms.float32), Tensor(gradient[6:], ms.float32)))
        there = (1 - at[step]) * first + at[step] * second
        whole = gradient + 0.01 * there
        moments[0] = 0.9 * moments[0] + (1 - at[step]) * whole + _pull(first, second)
        moments[1] = 0.9 * moments[1] + at[step] * whole + _pull(second, first)
        first, second = first - rate * moments[0], second - rate * moments[1]
        expected = (1 - at[step + 1]) * first + at[step + 1] * second
        np.testing.assert_allclose(np.concatenate([one.asnumpy().ravel() for one in weights]), expected, atol=2e-6)
    np.testing.assert_allclose(expected, (first + second) / 2)
