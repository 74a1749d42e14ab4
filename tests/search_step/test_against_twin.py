"""Compare the whole step with its plain NumPy twin over 50 steps.

With short steps, cell and twin run free of each other and end at the same weights to float32 accuracy. With steps as
long as BFGS wants them, each pair of noisy batches multiplies a rounding difference by up to the condition of H, so
that any two runs drift apart. There the twin takes over the cell's weights after each step, but nothing else: H, pairs,
momenta and decisions are its own over all 50 steps.
"""

import numpy as np
import pytest
from mindspore import Tensor

from dimred.proof.search_twin import Twin
from dimred.stages.subspace_train_step import SubspaceTrainStep
from tests.helpers.modes import slow_in_graph
from tests.helpers.networks import (
    Quadratic,
    Shortened,
    TanhMLP,
    basis_for,
    mlp_function,
    quadratic_function,
    quadratic_matrix,
    weight_vector,
)

N_STEPS = 50
TOLERANCE = 1e-2  # share of a step's length: float32 rounding, condition of H and noise in y, 1e-7 * 1e4 * 10

FREE_TOLERANCE = 3e-5  # share of the distance travelled over 50 free steps
LONGEST = 0.05

# Nearly every case changes one thing about the first.
CASES = {
    "as_published": {},
    "alpha_0": {"alpha": 0.0},
    "other_constants": {"rho": 0.3, "sigma": 0.1, "gamma": 0.5, "alpha": 0.01},
    "initial_scaling": {"initial_scaling": True},
    "min_cosine": {"min_cosine": 0.9},
    "few_trials": {"max_trials": 2, "sigma": 0.5},
    "projected_sgd": {"rule": "sgd", "learning_rate": 0.2, "momentum": 0.8},
    "scheduled_sgd": {"rule": "sgd", "learning_rate": [0.3, 0.2, 0.1, 0.05], "alpha": 0.0},
}


def quadratic_case():
    n, rng = 14, np.random.default_rng(2)
    start = rng.standard_normal(n)
    matrix = quadratic_matrix(n, condition=10).astype(np.float32).astype(np.float64)
    batches = [(rng.standard_normal(n) * 0.1 + 0.5,) for _ in range(N_STEPS)]
    return Quadratic(matrix, start), quadratic_function(matrix), batches


def mlp_case():
    rng = np.random.default_rng(4)
    batches = [(rng.standard_normal((64, 3)), rng.standard_normal((64, 2))) for _ in range(N_STEPS)]
    return TanhMLP(), mlp_function(), batches


class Pair:
    """The cell and its twin, which take the same steps."""

    def __init__(self, problem, options):
        self.network, function, batches = problem()
        self.batches = [tuple(part.astype(np.float32) for part in batch) for batch in batches]
        basis = basis_for(self.network, 6)
        self.step = SubspaceTrainStep(self.network, basis, **options)
        self.twin = Twin(function, basis.components, weight_vector(self.network), **options)

    def steps(self):
        """Yield what both find on each batch."""
        for number, batch in enumerate(self.batches):
            found = self.step(*(Tensor(part) for part in batch))
            expected = self.twin.step(tuple(part.astype(np.float64) for part in batch))
            assert found.step_size == pytest.approx(expected["step_size"], rel=1e-12), f"step {number}: {found}"
            yield found, expected


def follow(problem, options):
    """Run cell and twin side by side, and compare each step."""
    pair, outcomes = Pair(problem, options), []
    twin, start = pair.twin, pair.twin.weights
    for found, expected in pair.steps():
        where = f"{found}, twin {expected}"
        assert (found.n_trials, found.pair_used) == (expected["n_trials"], expected["pair_used"]), where
        assert float(found.loss.asnumpy()) == pytest.approx(expected["loss"], rel=3e-5, abs=1e-5), where
        assert found.slope == pytest.approx(expected["slope"], rel=TOLERANCE), where
        length = np.linalg.norm(twin.weights - start)
        weights = weight_vector(pair.network)
        np.testing.assert_allclose(weights, twin.weights, rtol=0, atol=TOLERANCE * length + 1e-6, err_msg=where)
        if twin.rule == "bfgs":
            twin.weights = weights.astype(np.float64)
        start = twin.weights
        outcomes.append(found)
    return pair.step, twin, outcomes


@slow_in_graph
@pytest.mark.parametrize("case", CASES)
def test_quadratic(case, mode):
    step, twin, outcomes = follow(quadratic_case, CASES[case])
    if twin.rule == "bfgs":
        atol = TOLERANCE * np.abs(twin.h).max()
        np.testing.assert_allclose(step.memory.direction.inverse_hessian, twin.h, rtol=0, atol=atol)
        assert sum(found.pair_used for found in outcomes) > 5
    if twin.alpha:
        np.testing.assert_allclose(step.memory.residual_momentum.asnumpy(), twin.m, rtol=0, atol=1e-4)
    # Without rejected trials, rejected steps and refused pairs the comparison would show little.
    if case == "as_published":
        assert {found.n_trials > 1 for found in outcomes} == {True, False}
        assert {found.pair_used for found in outcomes[2:]} == {True, False}
    if case == "min_cosine":
        assert sum(found.pair_used for found in outcomes) < 25
    if case == "few_trials":
        assert {found.accepted for found in outcomes} == {True, False}


def test_mlp():
    follow(mlp_case, CASES["as_published"])


def run_free(problem, case):
    """Run cell and twin from the same start, each on its own from there."""
    pair = Pair(problem, CASES[case])
    step, twin, start = pair.step, pair.twin, pair.twin.weights
    step.direction, twin.max_step = Shortened(step.direction, LONGEST), LONGEST
    assert sum(1 for _ in pair.steps()) == N_STEPS
    distance = np.linalg.norm(twin.weights - start)
    assert distance > 1, "too short a way to show anything"
    np.testing.assert_allclose(weight_vector(pair.network), twin.weights, rtol=0, atol=FREE_TOLERANCE * distance)


@pytest.mark.parametrize("case", ["as_published", "projected_sgd"])
@pytest.mark.parametrize("problem", [quadratic_case, pytest.param(mlp_case, marks=pytest.mark.slow)])
def test_50_steps_free_of_each_other(problem, case, pynative):
    run_free(problem, case)


def test_50_steps_free_of_each_other_in_graph_mode():
    run_free(mlp_case, "as_published")
