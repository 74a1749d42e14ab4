"""A plain NumPy twin of the subspace search, in float64, written from the equations and not from the code.

Lines 1 to 6 in ``Twin.step`` are the equations in Li et al., Low Dimensional Trajectory Hypothesis is True (2022),
algorithm 2 (P-BFGS), and for its P-SGD, with Nocedal & Wright, Numerical Optimization (2nd edition), 3.4 (Armijo), 6.17
(inverse BFGS) and 6.20 (its first H).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


def bfgs_inverse(h: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Apply Nocedal & Wright 6.17 as written: (I - r s y') H (I - r y s') + r s s', r = 1 / s'y."""
    r = 1.0 / (y @ s)
    left = np.eye(len(s)) - r * np.outer(s, y)
    return left @ h @ left.T + r * np.outer(s, s)


def cosine(s: np.ndarray, y: np.ndarray) -> float:
    """Return s'y / (|s| |y|); the curvature guard compares it with ``min_cosine``."""
    return float((y @ s) / (np.linalg.norm(y) * np.linalg.norm(s)))


@dataclass
class Twin:
    """The search on a function of (w, batch) that returns loss and gradient in float64.

    The fields from ``rho`` to ``min_cosine``, except ``max_step``, are options of ``dimred.SubspaceTrainStep``.
    """

    function: Any
    components: np.ndarray
    weights: np.ndarray
    rho: float = 0.55
    gamma: float = 0.9
    alpha: float = 0.001
    sigma: float = 0.4
    max_trials: int = 10
    initial_scaling: bool = False
    rule: str = "bfgs"
    max_step: float = np.inf  # not an option of the cell, see tests/search_step/test_against_twin.py
    learning_rate: Any = 0.1
    momentum: float = 0.9
    min_cosine: float = 0.01
    h: np.ndarray = field(init=False)
    pair_start: Any = None  # g_prev and s_prev from the last accepted step
    m: Any = 0.0
    velocity: Any = 0.0
    n_accepted: int = 0
    n_pairs: int = 0

    def __post_init__(self) -> None:
        self.components = self.components.astype(np.float64)
        self.weights = self.weights.astype(np.float64)
        self.h = np.eye(len(self.components))

    def step(self, batch: tuple[np.ndarray, ...]) -> dict[str, Any]:
        """Take one step on a batch, and return the ``SearchResult`` fields that the tests compare, by name."""
        p = self.components
        w = self.weights
        loss, g = self.function(w, batch)
        g_k = p @ g  # 1
        h, used = self._direction_matrix(g_k)  # 2
        velocity = self.momentum * self.velocity + g_k
        d_k = -h @ g_k if self.rule == "bfgs" else -self._rate() * velocity  # 3
        length = np.linalg.norm(d_k)
        if length > self.max_step:
            d_k = d_k * self.max_step / length
        d = p.T @ d_k
        slope = g_k @ d_k
        is_capped = self.n_pairs + used > 0
        t, n_trials = self._backtrack(w, d, loss, slope, batch, is_capped) if self.rule == "bfgs" else (1.0, 1)  # 4
        if t:  # 5
            self.h = h
            self.velocity = velocity
            self.n_pairs = self.n_pairs + used
            self.pair_start = (g_k, t * d_k)
            self.n_accepted += 1
        self.m = self.gamma * self.m + (g - p.T @ g_k)  # 6
        self.weights = w + t * d - self.alpha * self.m
        return {"loss": loss, "slope": slope, "step_size": t, "n_trials": n_trials, "pair_used": used}

    def _rate(self) -> float:
        if isinstance(self.learning_rate, float):
            return self.learning_rate
        return float(self.learning_rate[min(self.n_accepted, len(self.learning_rate) - 1)])

    def _direction_matrix(self, g_k: np.ndarray) -> tuple[np.ndarray, bool]:
        if self.pair_start is None or self.rule != "bfgs":
            return self.h, False
        g_start, s = self.pair_start
        y = g_k - g_start
        if cosine(s, y) <= self.min_cosine:
            return self.h, False
        h = self.h
        if self.initial_scaling and self.n_pairs == 0:
            h = (y @ s) / (y @ y) * np.eye(len(s))  # 6.20
        return bfgs_inverse(h, s, y), True

    def _backtrack(
        self, w: np.ndarray, d: np.ndarray, loss: float, slope: float, batch: tuple[np.ndarray, ...], is_capped: bool
    ) -> tuple[float, int]:
        j = 0
        while True:
            t = self.rho**j
            if j >= self.max_trials and (is_capped or np.array_equal((w + t * d).astype("f4"), w.astype("f4"))):
                return 0.0, j
            trial, _ = self.function(w + t * d, batch)
            if np.isfinite(trial) and trial < loss + self.sigma * t * slope:
                return t, j + 1
            j += 1
