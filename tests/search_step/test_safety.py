"""What a step must never do to the network, whatever its trials find."""

import math

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from dimred.errors import ConfigError, NothingAcceptedError, SearchError
from dimred.search_step.line_search import LineSearchResult
from dimred.search_step.result import Outcome, memory_arrays, search_line
from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.vectors.parameters import from_arrays, to_arrays
from tests.helpers.modes import slow_in_graph
from tests.helpers.networks import (
    BatchNormNet,
    PlainBasis,
    Quadratic,
    RejectAll,
    basis_for,
    image_batch,
    quadratic_matrix,
    set_weights,
    state_bytes,
    weight_vector,
)


def quadratic(k: int = 6, **options) -> tuple[Quadratic, SubspaceTrainStep]:
    network = Quadratic(quadratic_matrix(12, 10), np.linspace(-1, 1, 12))
    return network, SubspaceTrainStep(network, basis_for(network, k), **options)


def linear(seed: int) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(12).astype(np.float32) * 0.1)


class Guarded(nn.Cell):
    """A quadratic bowl whose loss is not finite beyond |w|^2 = limit, or wherever the batch is not."""

    def __init__(self, limit: float):
        super().__init__()
        self.limit = limit
        self.w = Parameter(Tensor(np.full(5, 2.0, np.float32)), name="w")
        self.seen = Parameter(Tensor(np.zeros(1, np.float32)), name="seen", requires_grad=False)

    def construct(self, x):
        self.seen += 1.0
        square = (self.w * self.w).sum()
        return (x * self.w).sum() + square + ops.log(ops.relu(self.limit - square)) * 0.0


class ConstantNoise(nn.Cell):
    """A network with noise that a graph keeps as a constant, so that each graph has another one."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(40, 1)

    def construct(self, x):
        noise = Tensor(np.random.standard_normal((64, 1)).astype(np.float32))  # noqa: NPY002
        return (self.dense(x) + noise).mean()


class FunctionalDropout(nn.Cell):
    """A network whose noise a search can't repeat; its loss is a mean times ``scale``, plus ``offset``."""

    def __init__(self, scale: float = 1.0, offset: float = 0.0, head: str = "normal"):
        super().__init__()
        self.dense = nn.Dense(40, 10)
        self.head = nn.Dense(10, 1, weight_init=head)
        self.scale, self.offset = scale, offset

    def construct(self, x):
        error = self.head(ops.dropout(self.dense(x), p=0.5, training=True)) - 1.0
        return (error * error).mean() * self.scale + self.offset


def test_accepted_points_satisfy_armijo_by_an_independent_forward(pynative):
    network, twin = BatchNormNet(), BatchNormNet().set_train(True)
    step = SubspaceTrainStep(network, basis_for(network, 8), alpha=0.0, sigma=0.3, rho=0.4)

    def loss(batch) -> float:
        set_weights(twin, weight_vector(network))
        return float(twin(*batch).asnumpy())

    accepted = 0
    for batch in map(image_batch, range(8)):
        before, found, after = loss(batch), step(*batch), loss(batch)
        assert float(found.loss.asnumpy()) == pytest.approx(before, rel=1e-5)
        assert found.loss_after == pytest.approx(after, rel=1e-5)
        if found.accepted:
            accepted += 1
            assert found.step_size == pytest.approx(0.4 ** (found.n_trials - 1))
            assert after < before + 0.3 * found.step_size * found.slope + 1e-6
    assert accepted >= 4


def test_batch_norm_after_an_accepted_step_is_one_ordinary_forward(mode):
    network, twin = BatchNormNet(), BatchNormNet().set_train(True)
    step = SubspaceTrainStep(network, basis_for(network, 8), alpha=0.0, sigma=0.45)
    gradient = ops.value_and_grad(twin, None, twin.trainable_params())
    accepted = 0
    for batch in map(image_batch, range(4)):
        from_arrays(twin.get_parameters(), to_arrays(network.get_parameters()), "the network")
        before = state_bytes(network, trainable=False)
        gradient(*batch)
        if step(*batch).accepted:
            accepted += 1
            assert state_bytes(network, trainable=False) == state_bytes(twin, trainable=False) != before
    assert accepted


def test_a_wholly_rejected_step_changes_nothing(mode):
    network = BatchNormNet()
    step = SubspaceTrainStep(network, basis_for(network, 8), alpha=0.0)
    assert step(*image_batch(0)).accepted
    before, memory = state_bytes(network), step.memory
    step.line_search = RejectAll(4)
    found = step(*image_batch(1))
    assert found.outcome is Outcome.NO_DECREASE
    assert (found.step_size, found.n_trials, found.moved_inside, found.accepted) == (0.0, 4, 0.0, False)
    assert found.loss_after == float(found.loss.asnumpy())
    assert state_bytes(network) == before
    assert step.memory.direction is memory.direction
    assert (step.memory.n_steps, step.memory.n_rejected_in_a_row) == (2, 1)
    np.testing.assert_array_equal(found.subspace_step, np.zeros(8))


@slow_in_graph
def test_rejected_steps_move_outside_only_keep_the_state_and_end_with_the_reason(mode):
    network, step = quadratic(alpha=0.01, gamma=0.0, max_rejected_steps=3)
    step.line_search = RejectAll(3)
    memory, components = step.memory.direction, basis_for(network, 6).components
    for number in range(3):
        before = weight_vector(network)
        found = step(linear(number))
        assert not found.accepted
        assert step.memory.direction is memory
        moved = weight_vector(network) - before
        assert np.linalg.norm(moved) == pytest.approx(found.moved_outside, rel=1e-4)
        assert np.linalg.norm(moved) > 1e-3
        assert np.linalg.norm(components @ moved) < 1e-5
    end = weight_vector(network)
    with pytest.raises(NothingAcceptedError, match=r"3 steps in a row were rejected \(max_rejected_steps\)"):
        step(linear(3))
    np.testing.assert_array_equal(weight_vector(network), end)
    assert step.memory.n_steps == 3


@slow_in_graph
def test_captured_fraction_and_distances(mode):
    network, step = quadratic(k=12, alpha=0.1)
    found = step(linear(0))
    assert found.captured_fraction == pytest.approx(1.0, abs=1e-5)
    assert found.moved_outside < 1e-5
    network, step = quadratic(k=3, alpha=0.0)
    start = weight_vector(network)
    found = step(linear(0))
    assert 0 < found.captured_fraction < 0.9
    assert np.linalg.norm(weight_vector(network) - start) == pytest.approx(found.moved_inside, rel=1e-4)
    assert found.seconds.keys() == {"gradient", "direction", "trials", "commit"}


@slow_in_graph
@pytest.mark.parametrize(
    ("rule", "options"), [("bfgs", {"max_trials": 6, "sigma": 0.01}), ("sgd", {"learning_rate": 1.0})]
)
def test_a_trial_that_is_not_finite_is_rejected(rule, options, mode):
    network = Guarded(limit=60.0)  # |w|^2 is 20 at the start and 245 at the first trial
    components = np.eye(5, dtype=np.float32)
    step = SubspaceTrainStep(network, PlainBasis(components), alpha=0.0, rule=rule, **options)
    before = state_bytes(network)
    found = step(Tensor(np.full(5, -9.0, np.float32)))
    if rule == "sgd":
        assert (found.accepted, found.n_trials) == (False, 1)
        assert state_bytes(network) == before
        assert not np.any(step.memory.direction.velocity)
    else:
        assert found.accepted
        assert found.n_trials > 1
        assert math.isfinite(found.loss_after)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_skips_the_whole_step(poison, mode):
    network = Guarded(limit=1e9)
    step = SubspaceTrainStep(network, PlainBasis(np.eye(5, dtype=np.float32)), alpha=0.1)
    good = Tensor(np.ones(5, np.float32))
    step(good)
    before, memory = state_bytes(network), step.memory
    found = step(Tensor(np.array([1, 1, poison, 1, 1], np.float32)))
    assert found.outcome is Outcome.NON_FINITE_GRADIENT
    assert (found.n_trials, found.step_size, found.moved_outside) == (0, 0.0, 0.0)
    assert state_bytes(network) == before
    assert step.memory == memory._replace(n_steps=2, n_rejected_in_a_row=1)
    assert "accepted 0 of 1 steps, 0.0 trials a step; unknown of the gradient" in search_line([found.record()])
    assert step(good).accepted
    assert step.memory.n_rejected_in_a_row == 0


class Interrupted:
    """A line search during which the user presses Ctrl-C."""

    def search(self, line) -> LineSearchResult:
        line.loss(1.0)
        raise KeyboardInterrupt


@slow_in_graph
def test_an_interrupted_search_puts_everything_back(mode):
    network = BatchNormNet()
    step = SubspaceTrainStep(network, basis_for(network, 8))
    before, memory = state_bytes(network), step.memory
    step.line_search = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        step(*image_batch(0))
    assert state_bytes(network) == before
    assert step.memory == memory


@slow_in_graph
@pytest.mark.parametrize("options", [{"alpha": 0.01}, {"alpha": 0.0, "rule": "sgd"}], ids=str)
def test_a_run_resumed_from_the_arrays_of_its_state_goes_on_byte_for_byte(options, mode):
    """A state that a caller keeps does not change, either."""
    network, step = quadratic(**options)
    for number in range(4):
        step(linear(number))
    kept, arrays = step.memory, step.state()
    for number in range(4, 8):
        step(linear(number))
    resumed, resumed_step = quadratic(**options)
    for name, value in memory_arrays(kept).items():
        np.testing.assert_array_equal(value, arrays[f"search:{name}"])
    resumed_step.restore(arrays, "the state")
    assert resumed_step.memory.n_steps == 4
    for number in range(4, 8):
        resumed_step(linear(number))
    assert state_bytes(resumed) == state_bytes(network)


@slow_in_graph
def test_the_state_of_another_search_is_refused_and_changes_nothing(mode):
    _, step = quadratic()
    step(linear(0))
    for options in ({"rule": "sgd"}, {"k": 5}):
        network, other = quadratic(**options)
        before, memory = state_bytes(network), other.memory
        with pytest.raises(ConfigError, match=r"search\.rule and search\.n_components can't change in a run"):
            other.restore(step.state(), "the state")
        assert state_bytes(network) == before
        assert other.memory is memory


def test_frozen_parameters_are_outside_the_basis_and_untouched(pynative):
    network = BatchNormNet()
    network.conv.weight.requires_grad = False
    basis = basis_for(network, 6)
    assert basis.components.shape[1] == weight_vector(network).size == 4 + 4 + 15
    step = SubspaceTrainStep(network, basis, alpha=0.01)
    frozen, trained = network.conv.weight.asnumpy().tobytes(), weight_vector(network)
    assert step(*image_batch(0)).accepted
    assert network.conv.weight.asnumpy().tobytes() == frozen
    assert not np.array_equal(weight_vector(network), trained)


NOISY = {
    "plain": FunctionalDropout,
    "constant": ConstantNoise,
    "small loss": lambda: FunctionalDropout(scale=1e-4),
    "large loss": lambda: FunctionalDropout(offset=1e3),
    "head of zeros": lambda: FunctionalDropout(head="zeros"),  # which hides the noise until it has moved
}


@pytest.mark.parametrize(
    ("noise", "mode"),
    [
        *((noise, "pynative") for noise in NOISY),
        ("plain", "graph"),
        ("constant", "graph"),
        pytest.param("small loss", "graph", marks=pytest.mark.slow),
        pytest.param("large loss", "graph", marks=pytest.mark.slow),
        pytest.param("head of zeros", "graph", marks=pytest.mark.slow),
    ],
    indirect=["mode"],
)
def test_random_numbers_the_search_cannot_repeat_are_found_before_a_step_is_made(noise, mode):
    ms.set_seed(1)  # by chance, two losses near 1,000 are equal to rounding
    network = NOISY[noise]()
    step = SubspaceTrainStep(network, basis_for(network, 40))
    before, memory = state_bytes(network), step.memory
    with pytest.raises(SearchError, match=r"ops\.dropout"):
        step(Tensor(np.random.default_rng(0).standard_normal((64, 40)).astype(np.float32)))
    assert state_bytes(network) == before
    assert step.memory is memory


@slow_in_graph
def test_losses_are_measured_again_until_a_step_is_accepted(mode):
    network = BatchNormNet()
    step = SubspaceTrainStep(network, basis_for(network, 8), alpha=0.0)
    passes, loss = [], step.objective.loss
    step.objective.loss = lambda inputs: passes.append(1) or loss(inputs)
    accepting = step.line_search
    for search, more in ((RejectAll(2), 1), (RejectAll(2), 1), (accepting, 2), (accepting, 0), (RejectAll(2), 0)):
        step.line_search = search
        passes.clear()
        n_trials = step(*image_batch(0)).n_trials
        assert len(passes) == n_trials + more
