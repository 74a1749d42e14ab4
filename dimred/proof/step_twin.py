"""Plain NumPy twins for a training step's update, in float64, written from the equations and not from the code."""

from collections.abc import Sequence
from typing import Any

import numpy as np

_Arrays = Sequence[np.ndarray]


def clip(gradients: _Arrays, norm: float) -> tuple[_Arrays, float]:
    """Scale all gradients, as one vector, to a length of at most ``norm`` (Pascanu et al., 2013, algorithm 1).

    Returns:
        The scaled gradients, and the length before scaling.
    """
    before = float(np.sqrt(sum((g**2).sum() for g in gradients)))
    if before > norm:
        gradients = [g * norm / before for g in gradients]
    return gradients, before


def ema(values: _Arrays, decay: float | None = None, ramp: bool = False, half_life: float | None = None) -> np.ndarray:
    """Return sum_s (1 - d_s) prod_{r > s} d_r value_s, the solution of the average's recursion.

    Args:
        values: the values at the updates s = 1, 2, ...
        decay, ramp: d_s is ``decay``, times 1 - exp(-s / 2000) with the ramp, and 0 for s = 1.
        half_life: replaces ``decay``: d_s is 2^(-1 / (half_life s)), and 0 for s = 1.
    """
    steps = np.arange(1, len(values) + 1)
    if half_life is not None:
        decays = 2.0 ** (-1 / (half_life * steps))
    else:
        decays = decay * (1 - np.exp(-steps / 2000)) if ramp else np.full(len(values), decay)
    decays[0] = 0
    total = np.zeros(np.shape(values[0]))
    for index, value in enumerate(values):
        total = total + (1 - decays[index]) * np.prod(decays[index + 1 :]) * value
    return total


class Optimizer:
    """One update rule over a list of arrays, each with its own weight decay; the rules cite their equations below."""

    def __init__(
        self,
        name: str,
        decays: Sequence[float],
        rates: Sequence[float],
        momentum: float | None = None,
        nesterov: bool = False,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        beta: float = 0.9,
    ):
        self.name = name
        self.decays = decays
        self.rates = rates
        self.momentum = {"momentum": 0.9, "sgd": 0.0}.get(name, 0.0) if momentum is None else momentum
        self.nesterov = nesterov
        self.beta1 = beta1
        self.beta2 = beta2
        self.eps = eps
        self.beta = beta
        self.first: list[Any] = [0.0] * len(decays)
        self.second: list[Any] = [0.0] * len(decays)
        self.t = 0

    def step(self, weights: _Arrays, gradients: _Arrays) -> list[np.ndarray]:
        """Return the weights after an update with these gradients."""
        rate = self._rate(self.t)
        self.t += 1
        return [
            self._one(i, w, g, self.decays[i], rate) for i, (w, g) in enumerate(zip(weights, gradients, strict=True))
        ]

    def _rate(self, t: int) -> float:
        return self.rates[min(t, len(self.rates) - 1)]

    def _one(self, i: int, w: np.ndarray, g: np.ndarray, decay: float, rate: float) -> Any:
        if self.name == "schedule_free":
            return self._schedule_free(i, w, g, decay)
        if self.name in ("momentum", "sgd"):  # Sutskever et al. (2013), with L2 decay in the gradient
            g = g + decay * w
            self.first[i] = self.momentum * self.first[i] + g
            return w - rate * (g + self.momentum * self.first[i] if self.nesterov else self.first[i])
        self.first[i] = self.beta1 * self.first[i] + (1 - self.beta1) * g
        self.second[i] = self.beta2 * self.second[i] + (1 - self.beta2) * g**2
        m = self.first[i] / (1 - self.beta1**self.t)  # Loshchilov & Hutter (2019), algorithm 2, lines 9, 10 and 12
        v = self.second[i] / (1 - self.beta2**self.t)
        return w - rate * (m / (np.sqrt(v) + self.eps) + decay * w)

    def _schedule_free(self, i: int, w: np.ndarray, g: np.ndarray, decay: float) -> Any:
        """Follow Defazio et al. (2024), algorithm 1: compute z and x from all rates and gradients so far."""
        if self.t == 1:
            self.first[i] = [w]  # z_1, z_2, ...
        self.first[i].append(self.first[i][-1] - self._rate(self.t - 1) * (g + decay * w))
        shares = np.array([self._rate(t) ** 2 for t in range(self.t)])
        x = sum(share * z for share, z in zip(shares / shares.sum(), self.first[i][1:], strict=True))
        return (1 - self.beta) * self.first[i][-1] + self.beta * x
