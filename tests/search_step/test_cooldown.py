"""A cooldown around the search: an optimizer steps on the part of the gradient that the subspace can't express."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.errors import ConfigError, NothingAcceptedError
from dimred.search_step.result import Outcome
from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.train_step.ema import EMA
from dimred.train_step.optimizers import make_optimizer, state_parameters
from dimred.train_step.schedule import with_cooldown
from tests.helpers.networks import (
    BatchNormNet,
    RejectAll,
    Shortened,
    TanhMLP,
    basis_for,
    image_batch,
    mlp_function,
    weight_vector,
)
from tests.helpers.problems import batches, changed, tensors, values
from tests.oracles.search import Twin
from tests.oracles.train_step import Optimizer

RATES = with_cooldown(np.full(3, 0.1), 2, 8, "1-sqrt")


def continued(network: nn.Cell, n_components: int, name: str = "momentum", **options) -> SubspaceTrainStep:
    optimizer = make_optimizer(name, network.trainable_params(), RATES, weight_decay=0.01, no_decay=["*bias"])
    return SubspaceTrainStep(network, basis_for(network, n_components), optimizer=optimizer, **options)


@pytest.mark.parametrize("name", ["momentum", "sgd", "adamw"])
def test_the_step_is_its_twin(name: str) -> None:
    network = TanhMLP()
    weights = network.trainable_params()
    basis = basis_for(network, 6)
    decays = [0.0 if weight.name.endswith("bias") else 0.01 for weight in weights]
    twin = Twin(
        mlp_function(), basis.components, weight_vector(network), max_step=0.05,
        optimizer=Optimizer(name, decays, RATES), sizes=[weight.size for weight in weights],
    )  # fmt: skip
    optimizer = make_optimizer(name, weights, RATES, weight_decay=0.01, no_decay=["*bias"])
    step = SubspaceTrainStep(network, basis, optimizer=optimizer)
    step.direction = Shortened(step.direction, 0.05)
    outside, start = 0.0, twin.weights
    for batch in batches(len(RATES), rows=64):
        expected, found = twin.step(tuple(part.astype(np.float64) for part in batch)), step(*tensors(batch))
        assert found.step_size == pytest.approx(expected["step_size"])
        outside += found.moved_outside
    assert outside > 0.05
    distance = np.linalg.norm(twin.weights - start)
    # Adam divides small gradients by their own size, and so enlarges their rounding.
    np.testing.assert_allclose(weight_vector(network), twin.weights, rtol=0, atol=1e-4 * distance)
    momentum = state_parameters(optimizer)[1:]
    assert max(np.abs(value.asnumpy()).max() for value in momentum) > 0 or name == "sgd"


def test_a_gradient_that_is_not_finite_leaves_the_optimizer_alone() -> None:
    network = TanhMLP()
    step = continued(network, 6, parts=[EMA(network, 0.5)], max_rejected_steps=2)
    x, target = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    step(Tensor(x), Tensor(target))
    before = values(step)
    for _ in range(2):
        assert step(Tensor(x * np.float32(np.nan)), Tensor(target)).outcome is Outcome.NON_FINITE_GRADIENT
    assert changed(before, values(step)) == set()
    with pytest.raises(NothingAcceptedError):  # only such gradients can end a cooldown's search
        step(Tensor(x), Tensor(target))


def test_a_step_without_an_accepted_trial_is_a_training_step_all_the_same() -> None:
    network = BatchNormNet()
    ema = EMA(network, 0.5)
    step = continued(network, 6, max_rejected_steps=2, parts=[ema])
    step.line_search = RejectAll(1)
    before = values(step)
    found = [step(*image_batch(number)) for number in range(4)]
    assert {result.outcome for result in found} == {Outcome.NO_DECREASE}
    assert all(result.moved_outside > 0 for result in found)
    assert {"norm.moving_mean", "ema.updates", "global_step"} <= changed(before, values(step))
    assert int(ema.n_updates.asnumpy()) == 4
    assert step.memory.n_rejected_in_a_row == 0


def test_an_optimizer_in_another_order_gets_each_gradient_where_it_belongs() -> None:
    """The optimizer is a user's own, without groups."""
    straight, turned = TanhMLP(), TanhMLP()
    for network, turn in ((straight, 1), (turned, -1)):
        optimizer = nn.Momentum(network.trainable_params()[::turn], 0.1, 0.9)
        step = SubspaceTrainStep(network, basis_for(network, 6), optimizer=optimizer)
        for batch in batches(3):
            step(*tensors(batch))
    np.testing.assert_array_equal(weight_vector(straight), weight_vector(turned))


def test_what_does_not_go_together_is_refused() -> None:
    network, other = TanhMLP(), TanhMLP()
    basis, optimizer = basis_for(network, 6), nn.Momentum(other.trainable_params(), 0.1, 0.9)
    for arguments, said in (
        ({"basis": basis, "optimizer": optimizer}, "optimizer has 'hidden.weight', which is not a trainable parameter"),
        ({"basis": None}, "basis is NoneType; give what dimred.fit_basis or load_basis made"),
    ):
        with pytest.raises(ConfigError, match=said):
            SubspaceTrainStep(network, **arguments)
