"""The mean of the weights over an interval is NumPy's mean of their path, in both modes, whatever was dropped."""

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from dimred.errors import ConfigError
from dimred.train_step.interval_mean import IntervalMean
from dimred.train_step.step import TrainStep
from tests.helpers.networks import TanhMLP, weight_vector
from tests.helpers.problems import batches, tensors


def followed(**options: Any) -> tuple[TanhMLP, IntervalMean, TrainStep]:
    network = TanhMLP()
    mean = IntervalMean(network)
    optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
    return network, mean, TrainStep(network, optimizer, parts=[mean], **options)


def taken(mean: IntervalMean) -> np.ndarray:
    return np.concatenate([value.ravel() for value in mean.take().values()])


@pytest.mark.parametrize("micro_batch_size", [None, 3])
def test_each_interval_has_the_mean_of_its_own_steps(micro_batch_size: int | None, mode: None) -> None:
    network, mean, step = followed(micro_batch_size=micro_batch_size)
    names = [weight.name for weight in network.trainable_params()]
    path = []
    for number, batch in enumerate(batches(10), start=1):
        step(*tensors(batch))
        path.append(weight_vector(network).astype(np.float64))
        if number in (3, 4, 10):
            raw = weight_vector(network)
            np.testing.assert_allclose(taken(mean), np.mean(path, axis=0), rtol=1e-6, atol=1e-7)
            np.testing.assert_array_equal(weight_vector(network), raw)
            path = []
    assert list(mean.take()) == names


def test_a_dropped_step_is_none_of_them(pynative: None) -> None:
    network, mean, step = followed(loss_scale=1)
    first, second, third = batches(3)
    step(*tensors(first))
    path = [weight_vector(network).astype(np.float64)]
    before = {parameter.name: parameter.asnumpy().tobytes() for parameter in mean.parameters}
    assert not step(*tensors((np.full_like(second[0], np.nan), second[1]))).applied
    assert {parameter.name: parameter.asnumpy().tobytes() for parameter in mean.parameters} == before
    step(*tensors(third))
    path.append(weight_vector(network).astype(np.float64))
    np.testing.assert_allclose(taken(mean), np.mean(path, axis=0), rtol=1e-6, atol=1e-7)
    assert not step(*tensors((np.full_like(second[0], np.nan), second[1]))).applied
    np.testing.assert_array_equal(taken(mean), weight_vector(network))  # of an interval without a step


def test_a_long_interval_loses_no_steps(pynative: None) -> None:
    """A float32 sum of the weights would lose a fifth of this drift, and a mean corrected by 1 / t all of it."""
    network = nn.Dense(1, 1, has_bias=False)
    n_steps = 2000
    path = np.linspace(1.001, 1.0011, n_steps + 1, dtype=np.float32)
    ops.assign(network.weight, Tensor(path[:1, np.newaxis]))
    mean = IntervalMean(network)
    for value in path[1:]:
        ops.assign(network.weight, Tensor([[value]]))
        mean()
    expected = path[1:].mean(dtype=np.float64)
    assert abs(taken(mean).item() - expected) <= np.spacing(np.float32(expected))


def test_an_interval_begins_with_the_weights_as_they_are(pynative: None) -> None:
    """What the network held when the part was made has no weight, even if it is no number."""
    network = nn.Dense(1, 1, has_bias=False)
    weight = network.weight.asnumpy().copy()
    ops.assign(network.weight, Tensor([[np.nan]], ms.float32))
    mean = IntervalMean(network)
    ops.assign(network.weight, Tensor(weight))
    mean.begin()
    mean()
    np.testing.assert_array_equal(taken(mean), weight.ravel())


def test_sums_of_half_precision_weights_are_float32_and_their_means_are_taken_in_half_precision(pynative: None) -> None:
    network = nn.Dense(2, 1, has_bias=False)
    network.weight = ms.Parameter(Tensor(np.ones((1, 2), np.float16)), name="weight")
    mean = IntervalMean(network)
    mean()
    network.weight.set_data(Tensor(np.full((1, 2), 1 + 2**-10, np.float16)))
    mean()
    network.weight.set_data(Tensor(np.full((1, 2), 1 + 2**-9, np.float16)))
    mean()
    np.testing.assert_array_equal(mean.sums[0].asnumpy(), np.full((1, 2), 3 * 2**-10, np.float32))
    taken = mean.take()["weight"]
    assert taken.dtype == np.float16
    np.testing.assert_array_equal(taken, np.full((1, 2), 1 + 2**-10, np.float16))


def test_a_network_that_is_no_cell_is_refused() -> None:
    with pytest.raises(ConfigError, match="network is 3"):
        IntervalMean(3)  # type: ignore[arg-type]
