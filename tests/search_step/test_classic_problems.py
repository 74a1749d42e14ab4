"""25 classic problems of unconstrained minimisation: the search's direction and line search beside SciPy's BFGS.

A problem is solved where f(x) - f* <= 1e-5 f(x0), as in the data profiles of Moré and Wild (Benchmarking
Derivative-Free Optimization Algorithms, 2009), and what counts is the number of gradients up to there.
"""

from itertools import count

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from scipy.optimize import minimize

from dimred.config import SearchOptions
from dimred.stages.subspace_train_step import SubspaceTrainStep, build_rule
from tests.helpers.networks import PlainBasis
from tests.oracles.classic import PROBLEMS, Problem

DEFAULT = SearchOptions()
MOST = 400  # gradients


class Solved(Exception):  # noqa: N818  # no error: it ends a solver
    pass


def is_solved(problem: Problem, x: np.ndarray) -> bool:
    # f* is known to six digits.
    return problem.value(x) <= problem.least + 1e-5 * problem.value(problem.start)


def gradients_of_scipy(problem: Problem) -> int | None:
    """Count SciPy's gradients until the problem is solved; None if it is not."""
    n_gradients = count(1)
    last = 0

    def gradient(x: np.ndarray) -> np.ndarray:
        nonlocal last
        last = next(n_gradients)
        if is_solved(problem, x):
            raise Solved
        return problem.gradient(x)

    try:
        minimize(problem.value, problem.start, jac=gradient, method="BFGS", options={"gtol": 1e-9})
    except Solved:
        return last
    return None


class Line:
    """The line x + t d, as a line search sees it."""

    def __init__(self, problem: Problem, x: np.ndarray, slope: float, direction: np.ndarray, is_scaled: bool):
        self.problem, self.x, self.first_slope, self.direction = problem, x, slope, direction
        self.is_scaled = is_scaled

    def at(self, step_size: float) -> np.ndarray:
        return self.x + step_size * self.direction

    def loss(self, step_size: float) -> float:
        return self.problem.value(self.at(step_size))

    def slope(self, step_size: float) -> float:
        assert step_size == 0
        return self.first_slope

    def moves(self, step_size: float) -> bool:
        return not np.array_equal(self.at(step_size), self.x)


def gradients_of_ours(problem: Problem, **options) -> int | None:
    """Count the gradients of the search step's loop, in float64; None if it does not solve the problem."""
    rule, search = build_rule(SearchOptions(**options), len(problem.start))
    x, state = problem.start, rule.initial()
    for n_gradients in range(1, MOST):
        if is_solved(problem, x):
            return n_gradients
        grad = problem.gradient(x)
        proposal = rule.propose(state, grad)
        line = Line(problem, x, proposal.slope, proposal.direction, proposal.is_scaled)
        found = search.search(line)
        if not found.accepted:
            return None
        x, state = line.at(found.step_size), rule.follow(proposal, grad, found.step_size)
    return None


@pytest.fixture(scope="module")
def scipys() -> dict[str, int | None]:
    return {name: gradients_of_scipy(problem) for name, problem in PROBLEMS.items()}


def ours(**options) -> dict[str, int | None]:
    return {name: gradients_of_ours(problem, **options) for name, problem in PROBLEMS.items()}


def test_as_many_problems_are_solved_as_by_scipy_in_no_more_gradients(scipys: dict[str, int | None]) -> None:
    assert len(scipys) == 25
    assert None not in scipys.values()
    without_noise = ours(initial_scaling=True, min_cosine=1e-8)
    assert None not in without_noise.values()
    assert sum(without_noise.values()) <= sum(scipys.values())
    assert sum(number <= scipys[name] for name, number in without_noise.items()) >= 16


def test_coordinates_of_very_different_scales_are_no_reason_to_refuse_pairs() -> None:
    """The Hessian's condition is 1e15 at the minimum; SciPy needs 60 gradients."""
    rosenbrock, scales = PROBLEMS["Rosenbrock (1)"], np.array([1e3, 1e-3])
    scaled = Problem(lambda x: rosenbrock.function(x * scales), rosenbrock.start / scales, rosenbrock.least)
    n_gradients = gradients_of_ours(scaled, initial_scaling=True, min_cosine=1e-8)
    assert n_gradients is not None
    assert n_gradients <= 66


def test_the_guard_against_noise_refuses_true_pairs_where_the_condition_is_above_40000(
    scipys: dict[str, int | None],
) -> None:
    guarded = ours(initial_scaling=True)
    assert [name for name, number in guarded.items() if number is None] == ["Powell, badly scaled (3)"]
    assert sum(filter(None, guarded.values())) <= sum(scipys[name] for name, number in guarded.items() if number)


class Value(nn.Cell):
    """A problem's value, with its gradient, for PyNative."""

    def __init__(self, problem: Problem):
        super().__init__()
        self.problem = problem

    def construct(self, w: Tensor) -> Tensor:
        return Tensor(self.problem.value(w.asnumpy()), ms.float32)

    def bprop(self, w: Tensor, out: Tensor, grad_of_out: Tensor) -> tuple[Tensor]:
        return (Tensor(self.problem.gradient(w.asnumpy()).astype(np.float32)) * grad_of_out,)


class Loss(nn.Cell):
    """A network whose loss is a problem's value at its weights, whatever the batch is."""

    def __init__(self, problem: Problem):
        super().__init__()
        self.w = Parameter(Tensor(problem.start.astype(np.float32)), name="w")
        self.value = Value(problem)

    def construct(self, batch: Tensor) -> Tensor:
        return self.value(self.w)


def step_for(problem: Problem, **options) -> SubspaceTrainStep:
    basis = PlainBasis(np.eye(len(problem.start), dtype=np.float32))
    return SubspaceTrainStep(Loss(problem), basis, alpha=0, **options)


BATCH = Tensor(np.zeros(1, np.float32))


def test_the_cell_gets_away_from_every_start_with_its_default_options(pynative) -> None:
    """With H = I the shortest of ten trials, rho^9 = 0.0046, is too long for eleven of them."""
    trials = {}
    for name, problem in PROBLEMS.items():
        found = step_for(problem)(BATCH)
        assert found.accepted, name
        assert found.loss_after < float(found.loss.asnumpy()), name
        trials[name] = found.n_trials
    assert sum(number > DEFAULT.max_trials for number in trials.values()) == 11


@pytest.mark.parametrize("name", ["Rosenbrock (1)", "helical valley (7)", "Brown and Dennis (16)"])
def test_the_cell_solves_problems_in_float32(name: str, pynative) -> None:
    problem = PROBLEMS[name]
    step, n_gradients = step_for(problem, initial_scaling=True), 0
    while not is_solved(problem, step.network.w.asnumpy()):
        n_gradients += step(BATCH).n_backward
        assert n_gradients < 40
