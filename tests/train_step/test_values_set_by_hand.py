"""Weights that a user sets between two steps, and errors inside a step: the next steps train all the same."""

from collections.abc import Callable

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

import dimred
from dimred.errors import ConfigError
from dimred.vectors.parameters import from_arrays
from tests.helpers.networks import basis_for

RNG = np.random.default_rng(4)
X, Y = (RNG.normal(size=(12, width)).astype(np.float32) for width in (5, 2))
WEIGHT = RNG.normal(size=(2, 5)).astype(np.float32)
RATE = 0.05


def load(layer: nn.Dense) -> None:
    ms.load_param_into_net(layer, {"weight": Parameter(Tensor(WEIGHT), name="weight")})


def set_data(layer: nn.Dense) -> None:
    layer.weight.set_data(Tensor(WEIGHT))


def set_transposed(layer: nn.Dense) -> None:
    """Set a tensor that is a view with strides, as of a kernel (in, out) of another framework."""
    layer.weight.set_data(Tensor(np.ascontiguousarray(WEIGHT.T)).T)


def from_array(layer: nn.Dense) -> None:
    """Set an array as a measurement or a resume does."""
    from_arrays([layer.weight], {layer.weight.name: WEIGHT}, "an array")


PUTS = [load, set_data, set_transposed, from_array]


def after_one_step() -> np.ndarray:
    errors = X.astype(np.float64) @ WEIGHT.T - Y
    return WEIGHT - RATE * 2 / errors.size * errors.T @ X


def check(make: Callable[[nn.Cell, nn.Optimizer], nn.Cell]) -> None:
    """Put the weights in each way between two steps, more than once."""
    layer = nn.Dense(5, 2, has_bias=False)
    step = make(nn.WithLossCell(layer, nn.MSELoss()), nn.SGD(layer.trainable_params(), RATE))
    batch = Tensor(X), Tensor(Y)
    for put in PUTS * 2:
        step(*batch)
        put(layer)
        step(*batch)
        np.testing.assert_allclose(layer.weight.asnumpy(), after_one_step(), rtol=1e-5, atol=1e-6, err_msg=put.__name__)


@pytest.mark.parametrize("options", [{}, {"parts": [dimred.StaticLossScale(8.0)]}, {"micro_batch_size": 5}])
def test_a_step_goes_on_from_weights_that_were_set(options: dict, pynative: None) -> None:
    check(lambda network, optimizer: dimred.TrainStep(network, optimizer, **options))


def test_a_graph_with_control_flow_goes_on_from_them() -> None:
    options = {"micro_batch_size": 5, "parts": [dimred.StaticLossScale(8.0)]}
    check(lambda network, optimizer: dimred.TrainStep(network, optimizer, **options))


@pytest.mark.parametrize("put", PUTS)
def test_a_search_moves_weights_that_were_set_before_its_first_step(put: Callable, pynative: None) -> None:
    layer = nn.Dense(5, 2, has_bias=False)
    put(layer)
    network = nn.WithLossCell(layer, nn.MSELoss())
    step = dimred.SubspaceTrainStep(network, basis_for(network, 10), alpha=0)
    found = step(Tensor(X), Tensor(Y))
    assert found.accepted
    moved = layer.weight.asnumpy() - WEIGHT
    assert np.linalg.norm(moved) == pytest.approx(found.moved_inside, rel=1e-4)


class Broken(nn.Cell):
    def __init__(self, error: type[BaseException] | None) -> None:
        super().__init__()
        self.layer, self.error = nn.Dense(5, 2), error

    def construct(self, x: Tensor) -> Tensor:
        if self.error is not None:
            raise self.error
        return self.layer(x)  # no mean


def train(network: nn.Cell) -> nn.Cell:
    return dimred.TrainStep(network, nn.SGD(network.trainable_params(), RATE))


def search(network: nn.Cell) -> nn.Cell:
    return dimred.SubspaceTrainStep(network, basis_for(network))


@pytest.mark.parametrize(("make", "error"), [(train, None), (train, RuntimeError), (search, KeyboardInterrupt)])
def test_errors_inside_a_step_leave_mindspore_as_it_was(make: Callable, error: type | None, pynative: None) -> None:
    for _ in range(2):
        with pytest.raises(error or ConfigError):
            make(Broken(error))(Tensor(X))
    assert Tensor(X)[1].shape == (5,)
    ms.set_context(mode=ms.GRAPH_MODE)
    layer = nn.Dense(5, 2)
    step = train(nn.WithLossCell(layer, nn.CrossEntropyLoss()))
    assert step(Tensor(X), Tensor(np.zeros(12, np.int32))).applied
