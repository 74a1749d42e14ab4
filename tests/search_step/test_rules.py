"""Directions and line searches on their own, without a network."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dimred.config import SearchOptions
from dimred.proof.search_twin import bfgs_inverse, cosine
from dimred.search_step import direction
from dimred.search_step.direction import (
    CurvatureState,
    InverseBFGS,
    ProjectedSGD,
    bfgs_update,
    condition_number,
    scaled_condition_number,
)
from dimred.search_step.line_search import ArmijoBacktracking, FixedStep
from tests.helpers.networks import quadratic_matrix

K = 4
numbers = st.floats(-1e6, 1e6, allow_nan=False, width=32)
vectors = arrays(np.float64, K, elements=numbers)
any_number = st.floats(allow_nan=True, allow_infinity=True)


class Function:
    """A function of t as a line search sees it, for weights of 1 that move by t; it counts the trials."""

    def __init__(self, loss_at, loss: float, slope: float, is_scaled: bool = True):
        self._loss_at, self._loss, self._slope = loss_at, loss, slope
        self.is_scaled = is_scaled
        self.n_trials = 0

    def loss(self, step_size: float) -> float:
        if step_size == 0:
            return self._loss
        self.n_trials += 1
        return self._loss_at(step_size)

    def slope(self, step_size: float) -> float:
        assert step_size == 0, "backtracking needs no other slope"
        return self._slope

    def moves(self, step_size: float) -> bool:
        return np.float32(1 + step_size) != 1


def positive_definite(seed: int, condition: float) -> np.ndarray:
    matrix = quadratic_matrix(K, condition, seed)
    return (matrix + matrix.T) / 2


def after_pair(rule: InverseBFGS, state: CurvatureState, s: np.ndarray, y: np.ndarray):
    """Return the proposal when the step s was followed by a change y of the gradient."""
    start = np.zeros(K)
    return rule.propose(state._replace(step_diff=s, start_grad=start), start + y)


@given(s=vectors, y=vectors, seed=st.integers(0, 99), condition=st.floats(1, 1e4))
def test_update_is_the_textbook_one_symmetric_and_satisfies_the_secant_equation(s, y, seed, condition):
    assume(min(np.linalg.norm(s), np.linalg.norm(y)) > 1e-3)
    assume(cosine(s, y) > 0.05)
    h = positive_definite(seed, condition)
    updated = bfgs_update(h, s, y)
    expected = bfgs_inverse(h, s, y)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(updated, expected, rtol=0, atol=1e-8 * scale)
    np.testing.assert_array_equal(updated, updated.T)
    np.testing.assert_allclose(updated @ y, s, rtol=0, atol=1e-8 * scale * np.linalg.norm(y))


@settings(max_examples=200)
@given(pairs=st.lists(st.tuples(arrays(np.float64, K, elements=any_number), vectors), min_size=1, max_size=8))
@pytest.mark.filterwarnings("ignore:(overflow|invalid value):RuntimeWarning")  # the drawn numbers are meant to
def test_h_stays_symmetric_positive_definite_whatever_pairs_come(pairs):
    rule = InverseBFGS(K)
    state = rule.initial()
    for s, y in pairs:
        state = after_pair(rule, state, s, y).state
        h = state.inverse_hessian
        np.testing.assert_array_equal(h, h.T)
        roots = np.sqrt(np.diagonal(h))
        assert np.linalg.eigvalsh(h / np.outer(roots, roots))[0] > 0
        gradient = np.ones(K)
        assert rule.propose(state._replace(step_diff=None), gradient).slope < 0


@pytest.mark.parametrize(("angle", "used"), [(0.02, True), (0.009, False), (0.0, False), (-0.5, False)])
def test_guard_is_relative_to_the_pair(angle, used):
    s = np.array([1.0, 0, 0, 0])
    y = np.array([angle, math.sqrt(1 - angle**2), 0, 0])
    rule = InverseBFGS(K)
    for scale_s, scale_y in [(1, 1), (1e-12, 1e-10), (1e9, 1e11)]:
        proposal = after_pair(rule, rule.initial(), scale_s * s, scale_y * y)
        assert proposal.pair_used is used
        assert proposal.is_scaled is used
        assert proposal.curvature == pytest.approx(angle * scale_s * scale_y)
        if not used:
            np.testing.assert_array_equal(proposal.state.inverse_hessian, np.eye(K))


def test_a_pair_at_the_guards_bound_is_ignored():
    s, y = np.array([1.0, 0, 0, 0]), np.array([3.0, 4.0, 0, 0])  # of lengths that have no rounding
    for min_cosine, used in ((0.6, False), (0.59, True)):
        rule = InverseBFGS(K, min_cosine=min_cosine)
        assert after_pair(rule, rule.initial(), s, y).pair_used is used


def test_an_update_that_would_ruin_the_condition_is_refused():
    rule = InverseBFGS(K)
    s = np.full(K, 1e7)
    y = np.full(K, 1e-7)  # the secant equation asks for an eigenvalue of 1e14 beside the ones
    proposal = after_pair(rule, rule.initial(), s, y)
    assert not proposal.pair_used
    np.testing.assert_array_equal(proposal.state.inverse_hessian, np.eye(K))
    # Along a coordinate this is a matter of that coordinate's scale, and nothing is lost by it.
    first = np.eye(K)[0]
    proposal = after_pair(rule, rule.initial(), 1e7 * first, 1e-7 * first)
    assert proposal.pair_used
    np.testing.assert_allclose(proposal.state.inverse_hessian, np.diag([1e14, *np.ones(K - 1)]), rtol=1e-15)


def test_condition_numbers():
    assert condition_number(np.diag([4.0, 2.0])) == 2.0
    assert condition_number(np.diag([0.5, 0.25])) == 2.0
    for not_positive_definite in (np.diag([1.0, -0.5]), np.diag([1.0, 0.0]), np.array([[np.nan]])):
        assert condition_number(not_positive_definite) == math.inf
    scales = np.diag([1e-9, 1.0, 1e9])
    matrix = np.array([[1.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 1.0]])
    assert scaled_condition_number(scales @ matrix @ scales) == pytest.approx(np.linalg.cond(matrix))
    for others in ([[1.0, 2.0], [2.0, 1.0]], [[1.0, np.inf], [np.inf, 1.0]], [[np.nan]]):
        for not_positive_definite in (np.diag([1.0, -0.5]), np.diag([1.0, 0.0]), np.array(others)):
            assert scaled_condition_number(not_positive_definite) == math.inf


@pytest.mark.parametrize("bad", [0.0, 1e-160, math.inf, math.nan])
def test_a_pair_without_a_length_has_no_cosine(bad):
    good = np.array([1.0, 0.0])
    for s, y in ((good, bad * np.ones(2)), (bad * np.ones(2), good), (bad * np.ones(2), bad * np.ones(2))):
        assert direction.cosine(s, y) == -1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_armijo_rejects_trials_that_are_not_finite(bad):
    line = Function(lambda t: bad if t > 0.3 else 0.0, 1.0, -1.0)
    assert ArmijoBacktracking(rho=0.5, sigma=0.1, max_trials=5).search(line) == (True, 0.25, 0.0)
    assert line.n_trials == 3


@pytest.mark.parametrize("slope", [0.0, 1.0, math.nan, -math.inf])
def test_armijo_makes_no_trial_without_a_descent_direction(slope):
    for is_scaled in (True, False):
        line = Function(lambda t: -1e9, 1.0, slope, is_scaled)
        assert ArmijoBacktracking(0.55, 0.4, 10).search(line) == (False, 0.0, 1.0)
        assert line.n_trials == 0


@given(loss=st.floats(-5, 5), slope=st.floats(-9, -0.01), bend=st.floats(0, 1e3), rho=st.floats(0.1, 0.9))
def test_armijo_takes_the_first_sufficient_trial(loss, slope, bend, rho):
    def loss_at(t):
        return loss + slope * t + bend * t * t

    line = Function(loss_at, loss, slope)
    found = ArmijoBacktracking(rho=rho, sigma=0.4, max_trials=7).search(line)
    enough = [loss_at(rho**j) < loss + 0.4 * rho**j * slope for j in range(7)]
    if True in enough:
        first = enough.index(True)
        assert (found.accepted, found.step_size, line.n_trials) == (True, rho**first, first + 1)
        assert found.loss == loss_at(rho**first)
    else:
        assert (found.accepted, found.step_size, line.n_trials, found.loss) == (False, 0.0, 7, loss)


def test_armijo_rejects_a_trial_that_only_reaches_the_bound():
    line = Function({1.0: 0.5, 0.5: 0.75, 0.25: 0.5}.__getitem__, 1.0, -1.0)
    assert ArmijoBacktracking(rho=0.5, sigma=0.5, max_trials=5).search(line) == (True, 0.25, 0.5)


@pytest.mark.parametrize("turn", [1e-3, 1.5e-7, 0.0])
def test_along_a_direction_without_a_scale_trials_end_only_where_the_weights_stay(turn):
    """A loss that falls up to t = turn, where weights of 1 no longer change below t = 6e-8."""
    line = Function(lambda t: 1.0 - t if t < turn else 2.0, 1.0, -1.0, is_scaled=False)
    found = ArmijoBacktracking(rho=0.5, sigma=0.4, max_trials=5).search(line)
    assert found.accepted is (turn > 0)
    assert turn / 2 <= found.step_size < max(turn, 1e-30)
    assert line.n_trials == (24 if turn == 0 else 1 - math.log2(found.step_size))
    scaled = Function(lambda t: 1.0 - t if t < turn else 2.0, 1.0, -1.0)
    assert ArmijoBacktracking(rho=0.5, sigma=0.4, max_trials=5).search(scaled) == (False, 0.0, 1.0)
    assert scaled.n_trials == 5


def test_fixed_step_takes_a_worse_point_but_none_that_is_not_finite():
    assert FixedStep().search(Function(lambda t: 9.0 * t, 1.0, -1.0)) == (True, 1.0, 9.0)
    assert FixedStep().search(Function(lambda t: math.nan, 1.0, -1.0)) == (False, 0.0, 1.0)


def test_projected_sgd_follows_its_schedule():
    def rates(learning_rate):
        rule = ProjectedSGD(K, learning_rate, momentum=0.0)
        state, used = rule.initial(), []
        for _ in range(4):
            proposal = rule.propose(state, np.ones(K))
            used.append(-proposal.direction[0])
            assert proposal.slope == -K * used[-1]
            state = rule.follow(proposal, np.ones(K), 1.0)
        return used

    assert rates(0.5) == [0.5] * 4
    assert rates([0.4, 0.2]) == [0.4, 0.2, 0.2, 0.2]
    assert rates(np.array([0.4, 0.2])) == [0.4, 0.2, 0.2, 0.2]
    as_tuple = SearchOptions(rule="sgd", learning_rate=np.array([0.25, 0.0], np.float32)).learning_rate
    assert rates(as_tuple) == [0.25, 0.0, 0.0, 0.0]
    assert rates(lambda n: 1.0 / (1 + n)) == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
