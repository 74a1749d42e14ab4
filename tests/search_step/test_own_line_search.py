"""A strong-Wolfe line search, which needs gradients in its trials, handed to ``SearchStep`` as one class."""

import math

import numpy as np
import pytest
from mindspore import Tensor
from scipy.optimize import line_search

from dimred.search_step.direction import InverseBFGS
from dimred.search_step.line_search import ArmijoBacktracking, LineFunction, LineSearchResult
from dimred.search_step.result import totals
from dimred.search_step.step import SearchStep
from tests.helpers.networks import TanhMLP, mlp_function, orthonormal_rows, weight_vector
from tests.helpers.problems import batches, tensors
from tests.oracles.classic import PROBLEMS

K = 6
C1, C2, LARGEST = 1e-4, 0.9, 50.0


class StrongWolfe:
    """Nocedal & Wright, Numerical Optimization, algorithms 3.5 and 3.6, with cubic interpolation (equation 3.59).

    It accepts the first trial with phi(t) <= phi(0) + c1 t phi'(0) and |phi'(t)| <= c2 |phi'(0)|.
    """

    def __init__(self, c1: float = C1, c2: float = C2, largest: float = LARGEST):
        self.c1, self.c2, self.largest = c1, c2, largest

    def search(self, line: LineFunction) -> LineSearchResult:
        before, t = 0.0, 1.0
        while before < self.largest:
            if self._too_high(line, t) or (before > 0 and line.loss(t) >= line.loss(before)):
                return self._zoom(line, before, t)
            if self._is_flat(line, t):
                return LineSearchResult(True, t, line.loss(t))
            if line.slope(t) >= 0:
                return self._zoom(line, t, before)
            before, t = t, min(2 * t, self.largest)
        return LineSearchResult(False, 0.0, line.loss(0.0))

    def _zoom(self, line: LineFunction, low: float, high: float) -> LineSearchResult:
        for _ in range(20):
            t = self._cubic(line, low, high)
            if self._too_high(line, t) or line.loss(t) >= line.loss(low):
                high = t
                continue
            if self._is_flat(line, t):
                return LineSearchResult(True, t, line.loss(t))
            if line.slope(t) * (high - low) >= 0:
                high = low
            low = t
        return LineSearchResult(False, 0.0, line.loss(0.0))

    def _too_high(self, line: LineFunction, t: float) -> bool:
        return not line.loss(t) <= line.loss(0.0) + self.c1 * t * line.slope(0.0)

    def _is_flat(self, line: LineFunction, t: float) -> bool:
        return abs(line.slope(t)) <= self.c2 * abs(line.slope(0.0))

    def _cubic(self, line: LineFunction, low: float, high: float) -> float:
        """Return the minimiser of the cubic through both ends, or the middle if it is not well inside."""
        if not all(map(math.isfinite, (line.loss(high), line.slope(high)))):
            return (low + high) / 2
        d1 = line.slope(low) + line.slope(high) - 3 * (line.loss(low) - line.loss(high)) / (low - high)
        square = d1**2 - line.slope(low) * line.slope(high)
        if square >= 0:
            d2 = math.copysign(math.sqrt(square), high - low)
            t = high - (high - low) * (line.slope(high) + d2 - d1) / (line.slope(high) - line.slope(low) + 2 * d2)
            if 0.1 < (t - low) / (high - low) < 0.9:
                return t
        return (low + high) / 2


class Counted:
    """A line of a classic problem that counts what it is asked for; SciPy is asked for the same."""

    is_scaled = True

    def __init__(self, function, gradient, x, direction):
        self.function, self.gradient, self.x, self.direction = function, gradient, x, direction

    def loss(self, step_size: float) -> float:
        return self.function(self.x + step_size * self.direction)

    def slope(self, step_size: float) -> float:
        return float(self.gradient(self.x + step_size * self.direction) @ self.direction)

    def moves(self, step_size: float) -> bool:
        return True


@pytest.mark.filterwarnings("ignore:The line search algorithm:RuntimeWarning")
@pytest.mark.parametrize("scale", [0.001, 0.03, 1.0, 20.0])
def test_the_class_finds_wolfe_points_wherever_scipy_does(scale: float) -> None:
    found_by_scipy = 0
    for name, problem in PROBLEMS.items():
        grad = problem.gradient(problem.start)
        direction = -scale * grad / np.linalg.norm(grad)
        t, *_ = line_search(problem.value, problem.gradient, problem.start, direction, grad, c1=C1, c2=C2, amax=LARGEST)
        if t is None:
            continue
        found_by_scipy += 1
        line = Counted(problem.value, problem.gradient, problem.start, direction)
        found = StrongWolfe().search(line)
        assert found.accepted, name
        for size in (t, found.step_size):
            assert line.loss(size) <= line.loss(0.0) + C1 * size * line.slope(0.0), name
            assert abs(line.slope(size)) <= C2 * abs(line.slope(0.0)), name
    assert found_by_scipy >= 14


class Noted:
    """A line search that notes what another one asked for."""

    def __init__(self, inner: StrongWolfe | ArmijoBacktracking):
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
    network, search = TanhMLP(), Noted(StrongWolfe())
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
        # Both Wolfe conditions, by the NumPy twin of the network, and SciPy's search from there.
        direction = rows.T.astype(np.float64) @ (result.subspace_step / result.step_size)
        line = Counted(
            lambda w, pair=pair: function(w, pair)[0], lambda w, pair=pair: function(w, pair)[1], start, direction
        )
        t = result.step_size
        assert line.slope(0.0) == pytest.approx(result.slope, rel=1e-3)
        assert line.loss(t) == pytest.approx(result.loss_after, rel=1e-5)
        assert line.loss(t) <= line.loss(0.0) + C1 * t * line.slope(0.0) + 1e-6
        assert abs(line.slope(t)) <= C2 * abs(line.slope(0.0)) + 1e-5
        scipys, *_ = line_search(line.function, line.gradient, start, direction, c1=C1, c2=C2, amax=LARGEST)
        assert scipys is not None
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
    step = SearchStep(network, orthonormal_rows(K, len(weight_vector(network))), InverseBFGS(K), StrongWolfe())
    x, target = np.full((4, 3), np.nan, np.float32), np.ones((4, 2), np.float32)
    result = step(Tensor(x), Tensor(target))
    assert (result.n_forward, result.n_backward, result.n_trials) == (1, 1, 0)
