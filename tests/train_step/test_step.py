"""TrainStep against momentum SGD by hand, with weight-decay groups and the schedule."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.builders.search import SubspaceTrainStep
from dimred.config import NO_DECAY_PATTERNS
from dimred.errors import ConfigError
from dimred.train_step.optimizers import decays
from dimred.train_step.schedule import make_rates, with_cooldown
from dimred.train_step.step import TrainStep
from tests.helpers.networks import basis_for, state_bytes

DECAY, MOMENTUM, STEPS = 0.1, 0.9, 6


@pytest.fixture(params=[ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=["graph", "pynative"], autouse=True)
def mode(request: pytest.FixtureRequest) -> None:
    ms.set_context(mode=request.param)


def problem() -> tuple[nn.Cell, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    network = nn.Dense(5, 2)
    network.weight.set_data(Tensor(rng.normal(size=(2, 5)).astype(np.float32)))
    return network, rng.normal(size=(7, 5)).astype(np.float32), rng.normal(size=(7, 2)).astype(np.float32)


def with_batch_norm() -> nn.Cell:
    return nn.SequentialCell(nn.Dense(5, 4), nn.BatchNorm1d(4), nn.Dropout(p=0.5), nn.Dense(4, 2))


@pytest.mark.parametrize("stage", [1, 2])
def test_a_step_that_is_called_trains_whatever_was_measured_in_between(stage: int) -> None:
    _, x, y = problem()
    network = with_batch_norm()
    loss, weights = nn.WithLossCell(network, nn.MSELoss()), network.trainable_params()
    if stage == 1:
        step = TrainStep(loss, nn.SGD(weights))
    else:
        basis = basis_for(network)
        step = SubspaceTrainStep(loss, basis, optimizer=nn.SGD(weights), max_trials=1)
    for _ in range(2):
        mean = network[1].moving_mean.asnumpy().copy()
        step(Tensor(x), Tensor(y))
        assert network[2].training
        assert (network[1].moving_mean.asnumpy() != mean).all()
        network.set_train(False)  # as whoever measures would do


def test_a_frozen_part_may_stay_in_evaluation_mode() -> None:
    _, x, y = problem()
    network = with_batch_norm()
    for weight in network[1].trainable_params():
        weight.requires_grad = False
    step = TrainStep(nn.WithLossCell(network, nn.MSELoss()), nn.SGD(network.trainable_params())).set_train(True)
    network[1].set_train(False)
    step(Tensor(x), Tensor(y))
    assert network[1].moving_mean.asnumpy().tolist() == [0, 0, 0, 0]


def test_an_optimizer_or_a_loss_that_can_not_train_the_network_is_refused() -> None:
    network, x, y = problem()
    loss, other = nn.WithLossCell(network, nn.MSELoss()), nn.Dense(2, 2, weight_init="ones")
    with pytest.raises(ConfigError, match="optimizer has 'weight', which is not a trainable parameter of the network"):
        TrainStep(loss, nn.SGD(other.trainable_params()))
    with pytest.raises(ConfigError, match=r"optimizer is 0\.1; give one"):
        TrainStep(loss, 0.1)
    half = nn.Dense(5, 2, dtype=ms.float16)
    with pytest.raises(ConfigError, match="the weight 'weight' is Float16; weights must be float32"):
        TrainStep(nn.WithLossCell(half, nn.MSELoss()), nn.SGD(half.trainable_params()))
    before = state_bytes(network)
    step = TrainStep(nn.WithLossCell(network, nn.MSELoss(reduction="none")), nn.SGD(network.trainable_params()))
    with pytest.raises(ConfigError, match=r"a loss of the shape \(7, 2\); a step needs one number"):
        step(Tensor(x), Tensor(y))
    assert state_bytes(network) == before


def test_a_cooldown_leaves_the_schedule_where_it_is_and_falls_to_nothing() -> None:
    rates = make_rates("linear", 0.8, 5, 90)
    cooled = with_cooldown(rates, 70, 2)
    np.testing.assert_array_equal(cooled[:71], rates[:71])
    np.testing.assert_allclose(cooled[70:], [rates[70], rates[70] / 2], rtol=1e-6)


def test_normalisation_and_biases_are_spared_from_decay() -> None:
    network = nn.SequentialCell(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dense(4, 2))
    assert [weight.name for weight in network.trainable_params() if decays(weight, NO_DECAY_PATTERNS)] == [
        "0.weight",
        "2.weight",
    ]
