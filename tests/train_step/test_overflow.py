"""A gradient that overflows leaves no trace, in any precision, with any optimizer, in both stages."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from dimred.search_step.result import Outcome
from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale, StaticLossScale
from dimred.train_step.optimizers import OPTIMIZERS, make_optimizer
from dimred.train_step.precision import with_precision
from dimred.train_step.step import TrainStep
from tests.helpers.modes import slow_in_graph
from tests.helpers.networks import BatchNormNet, basis_for, image_batch
from tests.helpers.problems import RATES, changed, overflowing, values

LEVELS = ("O1", "O2", "O3")
SCALE_STATE = {"loss_scale.scale", "loss_scale.good_steps", "loss_scale.overflows"}


def step_with(level: str, optimizer: str, scale, micro_batch_size: int | None = None) -> TrainStep:
    network = with_precision(BatchNormNet(), level)
    update = make_optimizer(optimizer, network.trainable_params(), RATES, weight_decay=0.01, no_decay=["*bias"])
    step = TrainStep(
        network,
        update,
        parts=[scale, Clipping(1.0), EMA(network, 0.9)],
        micro_batch_size=micro_batch_size,
    )
    step.set_train(True)
    return step


def check(make: Callable[[], TrainStep]) -> None:
    """Take a good step, one that overflows and a good one, and compare with the two good ones alone."""
    step = make()
    first = step.state()
    step(*image_batch(0))
    step(*image_batch(2))
    undisturbed = values(step)
    step.restore(first, "the beginning")
    assert bool(step(*image_batch(0)).applied)
    before = values(step)
    found = step(*overflowing(1))
    assert not bool(found.applied)
    assert int(found.telemetry["n_overflows"]) == 1
    assert changed(before, values(step)) <= SCALE_STATE
    assert "loss_scale.overflows" in changed(before, values(step))
    assert bool(step(*image_batch(2)).applied)
    after = values(step)
    weights = {"conv.weight", "norm.moving_mean", "ema.conv.weight", "forwards", "global_step"}
    assert weights <= changed(before, after)
    assert changed(after, undisturbed) <= SCALE_STATE


@slow_in_graph
def test_nan_reaches_the_weights_unless_there_is_a_loss_scale_to_drop_the_step(mode) -> None:
    images, labels = image_batch(0)
    images[0] = float("nan")
    for scale, applied in ((None, True), (1, False)):
        network = BatchNormNet()
        step = TrainStep(network, make_optimizer("momentum", network.trainable_params(), RATES), loss_scale=scale)
        assert bool(step(images, labels).applied) is applied
        assert np.isnan(network.conv.weight.asnumpy()).all() == applied


@pytest.mark.parametrize(
    ("level", "optimizer"),
    [*zip(itertools.cycle(LEVELS), OPTIMIZERS)],
)
def test_all_state_is_byte_equal_and_the_next_step_goes_on_as_if_it_had_not_happened(level, optimizer, pynative):
    check(lambda: step_with(level, optimizer, StaticLossScale(128.0)))


@pytest.mark.parametrize(
    ("level", "optimizer", "rows"), [pytest.param("O2", "adamw", 4, marks=pytest.mark.slow), ("O2", "momentum", None)]
)
def test_in_graph_mode_too(level, optimizer, rows):
    check(lambda: step_with(level, optimizer, DynamicLossScale(128.0), rows))


def test_a_static_scale_can_be_told_to_apply_overflows_too(pynative):
    step = step_with("O2", "momentum", StaticLossScale(128.0, drop_overflow=False))
    found = step(*overflowing(1))
    assert (bool(found.applied), int(found.telemetry["n_overflows"])) == (True, 0)
    assert not np.isfinite(values(step)["conv.weight"]).all()


@pytest.mark.parametrize("rows", [None, 4])
def test_a_search_step_that_overflows_is_skipped_and_the_scale_shrinks(rows, pynative):
    network = with_precision(BatchNormNet(), "O2")
    ema = EMA(network, 0.9)
    parts = [DynamicLossScale(128.0), ema]
    step = SubspaceTrainStep(network, basis_for(network, 8), parts=parts, micro_batch_size=rows)
    assert step(*image_batch(0)).telemetry["loss_scale"] == 128.0
    before, memory = values(step), step.memory
    found = step(*overflowing(1))
    assert found.outcome is Outcome.NON_FINITE_GRADIENT
    assert found.telemetry["n_overflows"] == 1
    assert changed(before, values(step)) <= SCALE_STATE
    assert step.memory == memory._replace(n_steps=2, n_rejected_in_a_row=memory.n_rejected_in_a_row + 1)
    assert step(*image_batch(2)).telemetry["loss_scale"] == 64.0


def test_a_parameter_that_the_optimizer_does_not_have_stays_as_it_was_though_it_asks_for_a_gradient(pynative):
    network = BatchNormNet()
    update = make_optimizer("momentum", network.trainable_params(), RATES)
    network.forwards.requires_grad = True  # as MindSpore makes parameters unless it is told otherwise
    step = TrainStep(network, update, parts=[DynamicLossScale()])
    step(*image_batch(0))
    assert not bool(step(*overflowing(1)).applied)
    assert int(network.forwards.asnumpy()) == 1
