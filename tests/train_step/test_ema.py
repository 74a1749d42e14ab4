"""EMA follows its closed form over 16 steps and through a resume; evaluation with it restores the raw weights."""

import functools

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.proof.step_twin import ema
from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.train_step.ema import EMA
from dimred.train_step.statistics import moving_statistics
from dimred.train_step.step import TrainStep
from dimred.vectors.parameters import from_arrays, to_arrays
from tests.helpers.networks import BatchNormNet, TanhMLP, basis_for, image_batch, state_bytes, weight_vector
from tests.helpers.problems import batches, tensors

N_STEPS, DECAY = 16, 0.95


KINDS = {
    "ramp": {"decay": DECAY, "ramp": True},
    "fixed": {"decay": DECAY, "ramp": False},
    "half_life": {"half_life": 0.3},
}


def averaged(kind: str) -> tuple[TanhMLP, TrainStep]:
    network = TanhMLP()
    optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
    return network, TrainStep(network, optimizer, parts=[EMA(network, **KINDS[kind])])


@functools.cache
def uninterrupted(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the average after all steps, and its closed form from the path of the weights."""
    network, step = averaged(kind)
    path = []
    for batch in batches(N_STEPS):
        step(*tensors(batch))
        path.append(weight_vector(network))
    found = np.concatenate([value.asnumpy().ravel() for value in step.ema.averages])
    return found, ema(np.array(path, np.float64), **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_many_steps_give_the_closed_form(kind, pynative):
    found, expected = uninterrupted(kind)
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_hundreds_of_updates_follow_a_drift(pynative):
    """1 - decay in float32 would follow by 1.7e-4 of itself too fast."""
    network, n_updates = nn.Dense(1, 1, has_bias=False, weight_init="zeros"), 200
    average, drift = EMA(network, 0.9999, ramp=False), np.float32(0.001) * np.arange(1, n_updates + 1, dtype=np.float32)
    for value in drift:
        ms.ops.assign(network.weight, ms.Tensor([[value]]))
        average()
    expected = ema(drift.astype(np.float64), 0.9999, False)
    np.testing.assert_allclose(average.averages[0].asnumpy().item(), expected, rtol=2e-5)


@pytest.mark.parametrize("t", [1, 20, 10**5, 10**8])
def test_the_fraction_of_a_half_life_keeps_its_digits(t):
    """A float32 number 1 - 2^(-1 / (0.05 t)) that is taken as a difference has no digits left where t is large."""
    average = EMA(nn.Dense(1, 1), half_life="5%")
    fraction = float(average.fraction(ms.Tensor(t, ms.float32)).asnumpy())
    assert fraction == pytest.approx(-np.expm1(-np.log(2) / (0.05 * t)), rel=3e-6)


@pytest.mark.parametrize("kind", ["ramp", "half_life"])
def test_a_resumed_run_gives_the_same_average_byte_for_byte(kind, tmp_path, pynative):
    found, _ = uninterrupted(kind)
    _, step = averaged(kind)
    for batch in batches(N_STEPS)[: N_STEPS // 2]:
        step(*tensors(batch))
    write_checkpoint(tmp_path / "step.ckpt", to_arrays(step.get_parameters()))
    _, resumed = averaged(kind)
    from_arrays(resumed.get_parameters(), read_checkpoint(tmp_path / "step.ckpt"), "the checkpoint")
    for batch in batches(N_STEPS)[N_STEPS // 2 :]:
        resumed(*tensors(batch))
    np.testing.assert_array_equal(np.concatenate([one.asnumpy().ravel() for one in resumed.ema.averages]), found)


def train_step(network: nn.Cell, average: EMA) -> TrainStep:
    return TrainStep(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), parts=[average])


def search_step(network: nn.Cell, average: EMA) -> SubspaceTrainStep:
    return SubspaceTrainStep(network, basis_for(network, 8), parts=[average])


MADE = [(train_step, True), (train_step, False), (search_step, True), (search_step, False)]  # and whether it ramps


@pytest.mark.parametrize(
    ("make", "ramp", "mode"),
    [
        *((*made, "pynative") for made in MADE),
        (*MADE[0], "graph"),
        *(pytest.param(*made, "graph", marks=pytest.mark.slow) for made in MADE[1:]),
    ],
    indirect=["mode"],
)
def test_an_average_made_before_the_weights_are_loaded_begins_at_its_first_update(make, ramp, mode):
    """What the network held before counts for nothing, whatever it was, and neither do its BatchNorm statistics."""
    network, loaded = BatchNormNet(), to_arrays(BatchNormNet(seed=6).get_parameters())
    for parameter in (*network.trainable_params(), *moving_statistics(network)):
        parameter.set_data(ms.Tensor(np.full(parameter.shape, 1e30, np.float32)))
    average = EMA(network, 0.9, ramp)
    step = make(network, average)
    from_arrays(network.get_parameters(), loaded, "the checkpoint")
    with average.in_place():
        assert state_bytes(network) == {name: value.tobytes() for name, value in loaded.items()}
    step(*image_batch(0))
    assert int(average.n_updates.asnumpy()) == 1
    for value, one in zip(average.values, average.averages, strict=True):
        np.testing.assert_array_equal(one.asnumpy(), value.asnumpy(), value.name)
    assert [one.name for one in average.statistics] == [f"ema.{one.name}" for one in moving_statistics(network)]
    ms.ops.assign(network.conv.weight, 2 * network.conv.weight)
    with average.in_place():
        np.testing.assert_array_equal(network.conv.weight.asnumpy(), average.averages[0].asnumpy())
    step(*image_batch(1))
    assert any((average.averages[0] != average.values[0]).asnumpy().ravel())


def test_in_place_the_network_is_the_average_and_afterwards_itself(mode):
    network = BatchNormNet()
    step = TrainStep(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), parts=[EMA(network, 0.5, ramp=False)])
    names = {value.name for value in step.ema.values}
    assert {"norm.moving_mean", "norm.moving_variance", "conv.weight"} <= names
    assert "forwards" not in names
    for number in range(3):
        step(*image_batch(number))
    step.set_train(False)
    raw, loss = state_bytes(network), float(network(*image_batch(9)).asnumpy())
    raw["forwards"] = network.forwards.asnumpy().tobytes()
    with step.ema.in_place():
        assert float(network(*image_batch(9)).asnumpy()) != loss
        for value, average in zip(step.ema.values, step.ema.averages, strict=True):
            np.testing.assert_array_equal(value.asnumpy(), average.asnumpy())
    network.forwards.set_data(ms.Tensor(np.frombuffer(raw["forwards"], np.int32)[0]))
    assert state_bytes(network) == raw
    with pytest.raises(KeyError), step.ema.in_place():
        raise KeyError
    assert state_bytes(network) == raw
    assert float(network(*image_batch(9)).asnumpy()) == loss


def test_weights_in_half_precision_have_an_average_that_moves(mode):
    """Rounded to half precision, it would stay at 1, or stop before 2."""
    network, dtype = nn.Dense(2, 1, has_bias=False), ms.float16
    network.weight = ms.Parameter(ms.Tensor(np.ones((1, 2), np.float32)).astype(dtype), name="weight")
    average = EMA(network, 0.9999, ramp=False)
    average()
    network.weight.set_data(ms.Tensor(np.full((1, 2), 2.0, np.float32)).astype(dtype))
    for _ in range(100):
        average()
    np.testing.assert_allclose(average.averages[0].asnumpy(), 2 - 0.9999**100, rtol=1e-5)
    with average.in_place():
        assert network.weight.dtype == dtype
        np.testing.assert_array_equal(network.weight.asnumpy(), average.averages[0].asnumpy().astype(np.float16))
    np.testing.assert_array_equal(network.weight.asnumpy(), 2)
