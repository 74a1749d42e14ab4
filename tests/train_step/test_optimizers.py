"""Optimizers, schedules, clipping and loss scales equal their plain twins."""

import mindspore as ms
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mindspore import Parameter, Tensor, nn

from dimred.config import NO_DECAY_PATTERNS
from dimred.errors import ConfigError
from dimred.proof.step_twin import Optimizer, clip
from dimred.train_step.adamw import AdamW
from dimred.train_step.clipping import Clipping
from dimred.train_step.loss_scale import DynamicLossScale, StaticLossScale
from dimred.train_step.optimizers import decays, make_optimizer
from dimred.train_step.schedule import make_rates, with_cooldown
from dimred.train_step.schedule_free import ScheduleFree
from tests.helpers.problems import RATES
from tests.oracles.train_step import LossScaleTwin, rates

OPTIONS = [
    ("momentum", {}),
    ("momentum", {"momentum": 0.5}),
    ("sgd", {"momentum": 0.5, "nesterov": True}),
    ("sgd", {}),
    ("sgd", {"momentum": 0.8}),
    ("adamw", {}),
    ("adamw", {"beta1": 0.5, "beta2": 0.9, "eps": 1e-3}),
    ("adamw", {"beta1": 0.0, "beta2": 0.0, "eps": 1e-3}),
    ("schedule_free", {}),
    ("schedule_free", {"beta": 0.5}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_an_optimizer_is_its_twin(name, options, pynative):
    rng = np.random.default_rng(3)
    shapes = {"dense.weight": (3, 2), "norm.gamma": (3,), "dense.bias": (2,)}
    weights = [rng.standard_normal(shape) for shape in shapes.values()]
    parameters = [Parameter(Tensor(w.astype(np.float32)), name=n) for n, w in zip(shapes, weights, strict=True)]
    step = make_optimizer(name, parameters, RATES, weight_decay=0.1, no_decay=["*gamma", "*bias"], **options)
    twin = Optimizer(name, [0.1, 0.0, 0.0], RATES, **options)
    for _ in range(6):
        gradients = [rng.standard_normal(shape) for shape in shapes.values()]
        step(tuple(Tensor(g.astype(np.float32)) for g in gradients))
        weights = twin.step(weights, gradients)
    for parameter, expected in zip(parameters, weights, strict=True):
        np.testing.assert_allclose(parameter.asnumpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_averaged_point_is_the_weighted_mean_of_the_base_points(pynative):
    """x_t = sum_s r_s^2 z_s / sum_s r_s^2; if gradients don't depend on y, z is a plain sum."""
    rng = np.random.default_rng(4)
    first, gradients = rng.standard_normal(3), rng.standard_normal((len(RATES), 3))
    weight = Parameter(Tensor(first.astype(np.float32)), name="w")
    step = make_optimizer("schedule_free", [weight], RATES, beta=0.8)
    for gradient in gradients:
        step((Tensor(gradient.astype(np.float32)),))
    rates = np.array(RATES)[:, None]
    base = first - np.cumsum(rates * gradients, axis=0)
    mean = (rates**2 * base).sum(0) / (rates**2).sum()
    averaged, own = step.averaged()["w"], weight.asnumpy().copy()
    np.testing.assert_allclose(averaged, mean, rtol=1e-4)
    np.testing.assert_allclose(own, 0.2 * base[-1] + 0.8 * mean, rtol=1e-4)
    with step.in_place():
        np.testing.assert_array_equal(weight.asnumpy(), averaged)
    np.testing.assert_array_equal(weight.asnumpy(), own)


@pytest.mark.parametrize("kind", [AdamW, ScheduleFree])
def test_centred_gradients_are_refused_and_not_left_out_in_silence(kind):
    weight = Parameter(Tensor(np.ones((3, 16), np.float32)), name="weight")
    kind([{"params": [weight], "grad_centralization": False}], 0.1)
    with pytest.raises(ConfigError, match=f"groups with grad_centralization, which {kind.__name__} lacks"):
        kind([{"params": [weight], "grad_centralization": True}], 0.1)


def test_weights_may_be_loaded_until_the_first_schedule_free_update(pynative):
    weight = Parameter(Tensor(np.zeros(2, np.float32)), name="w")
    step = make_optimizer("schedule_free", [weight], 0.5)
    weight.set_data(Tensor(np.array([3, 4], np.float32)))
    with step.in_place():
        np.testing.assert_array_equal(weight.asnumpy(), [3, 4])
    np.testing.assert_array_equal(step.averaged()["w"], [3, 4])
    step((Tensor(np.array([1, 2], np.float32)),))
    np.testing.assert_allclose(weight.asnumpy(), [2.5, 3.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("momentum", {"nesterov": True}, "optimizer.nesterov is not an option of momentum"),
        ("adamw", {"momentum": 0.9}, "not an option of adamw, which has beta1, beta2, eps; set it to null"),
        ("sgd", {"nesterov": True}, "optimizer.nesterov is true, which needs an optimizer.momentum above 0"),
    ],
)
def test_what_an_optimizer_does_not_take_is_named(name, options, said):
    with pytest.raises(ConfigError) as refused:
        make_optimizer(name, [Parameter(Tensor(np.ones(2, np.float32)), name="w")], 0.1, **options)
    assert said in str(refused.value)


def test_normalisation_and_biases_are_spared_from_decay_or_what_the_patterns_say():
    weights = nn.SequentialCell(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dense(4, 2)).trainable_params()
    for patterns, decay in ((NO_DECAY_PATTERNS, {"0.weight", "2.weight"}), (["2.*", "1.*"], {"0.weight"})):
        assert {weight.name for weight in weights if decays(weight, patterns)} == decay


@pytest.mark.parametrize("name", ["linear", "cosine", "1-sqrt", "constant", "step"])
@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_a_schedule_is_its_twin(name, warmup):
    milestones = [10, 20] if name == "step" else []
    found = make_rates(name, 0.8, warmup, 30, milestones, 0.3)
    np.testing.assert_allclose(found, rates(name, 0.8, warmup, 30, milestones, 0.3), rtol=1e-6)
    assert found.dtype == np.float32


def test_a_cooldown_leaves_the_schedule_where_it_is_and_falls_to_nothing():
    rates = make_rates("linear", 0.8, 5, 90)
    cooled = with_cooldown(rates, 70, 2)
    np.testing.assert_array_equal(cooled[:71], rates[:71])
    np.testing.assert_allclose(cooled[70:], [rates[70], rates[70] / 2], rtol=1e-6)


@pytest.mark.parametrize(
    ("norm", "size"), [(0.5, 1.0), (100.0, 1.0), (1.0, 0.0), (1.0, 1e20), (1.0, 1e38), (1e-31, 1e-30), (1e-12, 1e-13)]
)
def test_clipping_is_its_twin(norm, size, mode):
    """The squares of 1e20 are too large for float32, those of 1e-30 too small."""
    rng = np.random.default_rng(1)
    gradients = [size * rng.standard_normal(shape) for shape in ((3, 2), (4,))]
    found, (before,) = Clipping(norm)(tuple(Tensor(g.astype(np.float32)) for g in gradients))
    expected, length = clip(gradients, norm)
    assert float(before) == pytest.approx(length, rel=1e-5)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.asnumpy(), other, rtol=1e-5, atol=1e-7 * min(norm, 1.0))


def test_entries_of_very_different_sizes_are_clipped_together(mode):
    gradients = [np.array([1e30, 1e-30]), np.array([1e-30])]
    found, (before,) = Clipping(5.0)(tuple(Tensor(g.astype(np.float32)) for g in gradients))
    assert float(before) == pytest.approx(1e30)
    assert [one.asnumpy().tolist() for one in found] == [[5.0, 0.0], [0.0]]


def test_a_gradient_in_half_precision_is_clipped_in_float32(mode):
    """Its squares and the bounds of an ordinary gradient are too large for float16."""
    gradients = (Tensor(np.array([300, 400], np.float16)), Tensor(np.array([0, 1200], np.float32)))
    clipped, (length,) = Clipping(13.0)(gradients)
    assert float(length) == pytest.approx(1300)
    assert [one.dtype for one in clipped] == [ms.float16, ms.float32]
    np.testing.assert_allclose(np.concatenate([one.asnumpy() for one in clipped]), [3, 4, 0, 12], rtol=1e-3)


@pytest.mark.parametrize("entry", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_clipped_to_nan_everywhere(entry, mode):
    """So no finite part is applied as if it were a whole gradient, clipped or not."""
    clipped, (length,) = Clipping(1.0)(
        (Tensor(np.array([entry, 1e6], np.float32)), Tensor(np.array([3.0], np.float32)))
    )
    assert not np.isfinite(length.asnumpy())
    assert all(np.isnan(part.asnumpy()).all() for part in clipped)


def test_a_gradient_comes_back_from_its_scale_with_its_weight(pynative):
    scale = StaticLossScale(8.0)
    loss, gradients = Tensor(3.0), (Tensor([16.0, -4.0], ms.float16),)
    assert float(scale.scaled(loss, loss)) == 24.0
    (unscaled,) = scale.unscaled(gradients, Tensor(0.5))
    assert unscaled.dtype == ms.float32
    assert unscaled.asnumpy().tolist() == [1.0, -0.25]
    for each in (False, True, False):
        scale.observe(Tensor(each))
    assert (int(scale.n_overflows), float(scale.scale)) == (2, 8.0)


def test_the_dynamic_scale_begins_at_2_to_the_16_and_ends_at_2_to_the_24(pynative):
    scale = DynamicLossScale(window=1)
    found = [float(scale.scale)]
    for _ in range(9):
        scale.observe(Tensor(True))
        found.append(float(scale.scale))
    assert found == [2.0 ** min(16 + number, 24) for number in range(10)]


@given(finite=st.lists(st.booleans(), max_size=30), window=st.integers(1, 4), factor=st.sampled_from([2.0, 4.0]))
@example(finite=[True] * 8, window=3, factor=2.0)  # it grows twice, with its count begun anew in between
@settings(max_examples=15)
def test_the_dynamic_scale_is_its_twin(finite, window, factor):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    scale = DynamicLossScale(16.0, factor, window, smallest=4.0, largest=128.0)
    twin = LossScaleTwin(16.0, factor, window, 4.0, 128.0)
    for each in finite:
        scale.observe(Tensor(each))
        twin.step(each)
        assert float(scale.scale) == twin.scale
    assert int(scale.n_overflows) == twin.overflows
    ms.set_context(mode=ms.GRAPH_MODE)
