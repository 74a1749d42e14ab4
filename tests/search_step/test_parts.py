"""The search uses the parts of a training step: clipping, loss scale, EMA, half precision."""

import numpy as np
import pytest

from dimred.proof.search_twin import Twin
from dimred.proof.step_twin import ema
from dimred.search_step.result import Outcome
from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale, StaticLossScale
from dimred.train_step.precision import with_precision
from tests.helpers.networks import RejectAll, TanhMLP, basis_for, mlp_function, weight_vector
from tests.helpers.problems import batches, tensors

BATCHES = batches(6, rows=64)


def clipped(norm: float):
    """Return a function that gives the loss, and the gradient cut to a length of at most ``norm``."""

    def function(w, batch):
        loss, g = mlp_function()(w, batch)
        return loss, g * min(1.0, norm / np.linalg.norm(g))

    return function


def test_the_search_sees_the_clipped_gradient_and_the_unscaled_loss():
    network = TanhMLP()
    basis = basis_for(network, 6)
    twin = Twin(clipped(0.3), basis.components, weight_vector(network), alpha=0.01)
    clipping = Clipping(0.3)
    step = SubspaceTrainStep(network, basis, alpha=0.01, parts=[clipping, StaticLossScale(1024.0)])
    for batch in BATCHES:
        _, g = mlp_function()(weight_vector(network).astype(np.float64), batch)
        expected, found = twin.step(batch), step(*tensors(batch))
        assert float(found.loss.asnumpy()) == pytest.approx(expected["loss"], rel=1e-4)
        assert found.slope == pytest.approx(expected["slope"], rel=1e-3)
        assert found.step_size == pytest.approx(expected["step_size"])
        assert found.grad_norm == pytest.approx(np.linalg.norm(g), rel=1e-4)
        assert found.telemetry["loss_scale"] == 1024.0
    np.testing.assert_allclose(weight_vector(network), twin.weights, atol=1e-4)
    assert len(clipping.compile_cache) == 1  # not one graph for each gradient


def test_a_gradient_whose_squares_overflow_is_clipped_and_not_taken_for_one_that_is_not_finite():
    network = TanhMLP()
    step = SubspaceTrainStep(network, basis_for(network, 6), alpha=0.01, parts=[Clipping(0.3)])
    batch = np.ones((1, 3), np.float32), np.full((1, 2), 1.25e19, np.float32)
    _, g = mlp_function()(weight_vector(network).astype(np.float64), [part.astype(np.float64) for part in batch])
    found = step(*tensors(batch))
    assert found.outcome is Outcome.NO_DECREASE  # the loss is 2e38, and float32 has no smaller one near it
    assert np.linalg.norm(g) ** 2 > np.finfo(np.float32).max
    assert found.grad_norm == pytest.approx(np.linalg.norm(g), rel=1e-4)
    assert 0 < found.moved_outside < 0.3 * 0.01


@pytest.mark.parametrize("options", [{"decay": 0.5, "ramp": False}, {"half_life": 0.3}], ids=["decay", "half_life"])
def test_the_average_moves_with_accepted_steps_only(options):
    network = TanhMLP()
    average = EMA(network, **options)
    step = SubspaceTrainStep(network, basis_for(network, 6), alpha=0.01, parts=[average])
    path = []
    for number, batch in enumerate(BATCHES):
        if number == 3:
            step.line_search = RejectAll(2)
        accepted = step(*tensors(batch)).accepted
        assert accepted == (number < 3)
        if accepted:
            path.append(weight_vector(network))
        found = np.concatenate([value.asnumpy().ravel() for value in average.averages])
        np.testing.assert_allclose(found, ema(path, **options), atol=1e-6)


def test_a_search_in_half_precision_sees_the_gradient_without_its_loss_scale():
    network, function = with_precision(TanhMLP(), "O2"), mlp_function()
    step = SubspaceTrainStep(network, basis_for(network, 6), alpha=0.0, parts=[DynamicLossScale(1024.0)])
    n_accepted = 0
    for batch in BATCHES:
        before = weight_vector(network).astype(np.float64)
        result = step(*tensors(batch))
        loss, g = function(before, batch)
        assert float(result.loss.asnumpy()) == pytest.approx(loss, rel=1e-2)
        assert result.grad_norm == pytest.approx(np.linalg.norm(g), rel=1e-2)
        after = weight_vector(network).astype(np.float64)
        n_accepted += result.accepted
        if result.accepted:
            assert result.loss_after == pytest.approx(function(after, batch)[0], rel=1e-2)
            assert result.loss_after < float(result.loss.asnumpy())
        else:
            np.testing.assert_array_equal(after, before)
    assert n_accepted >= 4
    assert int(step.loss_scale.n_overflows) == 0
