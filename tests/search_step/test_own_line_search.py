"""A line search of one's own, which needs gradients in its trials, handed to ``SearchStep`` as one class."""

import math

import numpy as np
import pytest
from mindspore import Tensor

from dimred.search_step.direction import InverseBFGS
from dimred.search_step.line_search import ArmijoBacktracking, LineFunction, LineSearchResult
from dimred.search_step.result import totals
from dimred.search_step.search_step import SearchStep
from tests.helpers.networks import TanhMLP, mlp_function, orthonormal_rows, weight_vector
from tests.helpers.problems import batches, tensors

K = 6
C1, C2 = 1e-4, 0.9


class WeakWolfe:
    """Bisection and doubling (Lewis & Overton, Nonsmooth optimization via quasi-Newton methods, 2013, algorithm 2.6).

    It accepts the first trial with phi(t) <= phi(0) + c1 t phi'(0) and phi'(t) >= c2 phi'(0).
    """

    def search(self, line: LineFunction) -> LineSearchResult:
        low, high, t = 0.0, math.inf, 1.0
        for _ in range(30):
            if not line.loss(t) <= line.loss(0.0) + C1 * t * line.slope(0.0):
                high = t
            elif line.slope(t) < C2 * line.slope(0.0):
                low = t
            else:
                return LineSearchResult(True, t, line.loss(t))
            t = (low + high) / 2 if high < math.inf else 2 * low
        return LineSearchResult(False, 0.0, line.loss(0.0))


class Noted:
    """A line search that notes what another one asked for."""

    def __init__(self, inner: WeakWolfe | ArmijoBacktracking):
        self.inner = inner

    def search(self, line: LineFunction) -> LineSearchResult:
        self.losses, self.slopes = set[float](), set[float]()
        self.is_scaled, self._line = line.is_scaled, line
        return self.inner.search(self)

    def loss(self, step_size: float) -> float:
        if step_size and step_size not in self.slopes:
            self.losses.add(step_size)
        return self._line.loss(step_size)

    def slope(self, step_size: float) -> float:
        if step_size:
            self.slopes.add(step_size)
        return self._line.slope(step_size)

    def moves(self, step_size: float) -> bool:
        return self._line.moves(step_size)


def test_the_step_takes_it_and_counts_the_passes_that_it_spent() -> None:
    network, search = TanhMLP(), Noted(WeakWolfe())
    rows = orthonormal_rows(K, len(weight_vector(network)))
    step = SearchStep(network, rows, InverseBFGS(K, initial_scaling=True), search)
    records, function = [], mlp_function()
    for batch in batches(8, rows=64):
        start, pair = weight_vector(network).astype(np.float64), tuple(part.astype(np.float64) for part in batch)
        result = step(*tensors(batch))
        assert result.n_forward == 1 + len(search.losses) + len(search.slopes)
        assert result.n_backward == 1 + len(search.slopes)
        assert result.n_trials == len(search.losses | search.slopes)
        records.append(result.record())
        assert result.accepted
        # Both Wolfe conditions, by the NumPy twin of the network.
        step_taken = rows.T.astype(np.float64) @ result.subspace_step
        (loss, grad), (loss_after, grad_after) = (function(w, pair) for w in (start, start + step_taken))
        assert grad @ step_taken == pytest.approx(result.step_size * result.slope, rel=1e-3)
        assert loss_after == pytest.approx(result.loss_after, rel=1e-5)
        assert loss_after <= loss + C1 * grad @ step_taken + 1e-6
        assert grad_after @ step_taken >= C2 * grad @ step_taken - 1e-5
    done = totals(records)
    assert done["n_backward"] > len(records) + 8 - 1
    assert done["n_forward"] > done["n_backward"]


def test_backtracking_spends_one_gradient_and_a_forward_pass_for_each_trial() -> None:
    network, search = TanhMLP(), Noted(ArmijoBacktracking(0.55, 0.4, 10))
    step = SearchStep(network, orthonormal_rows(K, len(weight_vector(network))), InverseBFGS(K), search)
    for batch in batches(8, rows=64):
        result = step(*tensors(batch))
        assert not search.slopes
        assert (result.n_forward, result.n_backward) == (1 + result.n_trials, 1)
        assert result.n_trials == len(search.losses)


def test_a_gradient_that_is_not_finite_costs_its_two_passes() -> None:
    network = TanhMLP()
    step = SearchStep(network, orthonormal_rows(K, len(weight_vector(network))), InverseBFGS(K), WeakWolfe())
    x, target = np.full((4, 3), np.nan, np.float32), np.ones((4, 2), np.float32)
    result = step(Tensor(x), Tensor(target))
    assert (result.n_forward, result.n_backward, result.n_trials) == (1, 1, 0)
