"""Each step draws new masks that its state can restore; other steps, ranks and calls of a cell draw others."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

import dimred
from dimred.distributed.ranks import Ranks
from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.train_step.dropout import ReplayableDropout, make_replayable
from dimred.train_step.step import TrainStep
from tests.helpers.networks import DropoutNet, basis_for, state_bytes


class Twice(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dropout, self.scale = nn.Dropout(p=0.5), Parameter(Tensor(1.0, ms.float32))

    def construct(self, x):
        return self.dropout(self.dropout(x)).mean() * self.scale


@pytest.mark.parametrize("parts", [{}, {"micro_batch_size": 400}])
def test_a_cell_that_is_called_twice_in_a_pass_draws_two_masks(mode, parts):
    """With one mask, 1 of 2 elements is kept and scaled by 4: the mean of ones would be 2."""
    network = Twice()
    step = TrainStep(network, nn.SGD(network.trainable_params(), 0.0), **parts)
    losses = [float(step(Tensor(np.ones((400, 50), np.float32))).loss) for _ in range(4)]
    assert losses == pytest.approx([1.0] * 4, abs=0.06)
    assert len({*losses}) == 4


@pytest.mark.parametrize("parts", [{}, {"micro_batch_size": 40}])
def test_parts_with_steps_of_their_own_before_draw_different_masks_in_one_step(mode, parts):
    ones, halves = Tensor(np.ones((40, 50), np.float32)), []
    for _ in range(2):
        half = Twice()
        TrainStep(half, nn.SGD(half.trainable_params(), 0.0), **parts)(ones)
        halves.append(half)

    class Both(nn.Cell):
        def __init__(self):
            super().__init__()
            self.one, self.other = halves

        def construct(self, x):
            return (self.one(x) - self.other(x)) ** 2

    for half, name in zip(halves, "ab", strict=True):
        half.scale.name = name
    network = Both()
    step = TrainStep(network, nn.SGD(network.trainable_params(), 0.0), **parts)
    assert all(float(step(ones).loss) > 0 for _ in range(3))


def test_a_step_is_not_disturbed_by_another_one_on_its_network(mode):
    ones, networks = Tensor(np.ones((4, 30), np.float32)), [DropoutNet(), DropoutNet()]
    alone, disturbed = (TrainStep(one, nn.SGD(one.trainable_params(), 0.0)) for one in networks)
    other = TrainStep(networks[1], nn.SGD(networks[1].trainable_params(), 0.0), micro_batch_size=2)
    losses = [float(alone(ones).loss) for _ in range(3)]
    assert float(disturbed(ones).loss) == losses[0]
    state = disturbed.state()
    other(ones)
    disturbed.restore(state, "here")
    assert [float(disturbed(ones).loss) for _ in range(2)] == losses[1:]


def test_the_masks_of_a_search_are_not_those_of_training_and_leave_none_to_come_twice(mode):
    network = DropoutNet()
    step = TrainStep(network, nn.SGD(network.trainable_params(), 0.0))
    x = Tensor(np.random.default_rng(2).standard_normal((4, 30)).astype(np.float32))
    search = SubspaceTrainStep(network, basis_for(network, 8), alpha=0.0)
    search.line_search.sigma, search.line_search.max_trials = 1e9, 1  # so that it accepts nothing
    losses = [float(one(x).loss) for one in (step, step, search, search, step, step)]
    assert len({*losses}) == len(losses)


def test_trials_of_a_step_see_the_masks_of_its_gradient(mode):
    network = DropoutNet()
    names = [p.name for p in network.get_parameters()]
    step = SubspaceTrainStep(network, basis_for(network, 8), alpha=0.0, sigma=0.4, max_trials=8)
    assert isinstance(network.dropout, ReplayableDropout)
    assert [p.name for p in network.get_parameters()] == names
    x = Tensor(np.random.default_rng(2).standard_normal((4, 30)).astype(np.float32))
    losses = []
    for number in range(6):
        found = step(x)
        network.set_train(True)
        make_replayable(network).draw(number, 0)
        # The network still has the masks of this step, so it gives f at the accepted point.
        assert float(network(x).asnumpy()) == pytest.approx(found.loss_after, rel=1e-5)
        losses.append(found)
    step.line_search.sigma, step.line_search.max_trials = 1e9, 1
    before = state_bytes(network)
    rejected = [float(step(x).loss.asnumpy()) for _ in range(4)]
    assert state_bytes(network) == before
    assert len(set(rejected)) == 4  # same weights, same batch: only the masks differ
    assert sum(found.accepted for found in losses) >= 4


class Numbered(Ranks):
    """Ranks with these numbers that exchange nothing."""

    def __init__(self, rank, group_size):
        self.rank, self.group_size = rank, group_size


def momentum_step(parts, rank=0, group_size=1):
    ms.set_seed(1)
    network = DropoutNet()
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    return TrainStep(network, optimizer, ranks=Numbered(rank, group_size), **parts)


@pytest.mark.parametrize("parts", [{}, {"micro_batch_size": 2}, {"loss_scale": dimred.DynamicLossScale(16.0)}])
def test_a_restored_training_step_goes_on_with_the_masks_that_it_would_have_drawn(mode, parts):
    x = Tensor(np.random.default_rng(2).standard_normal((4, 30)).astype(np.float32))
    whole, begun, resumed = (momentum_step(parts) for _ in range(3))
    losses = [float(whole(x).loss) for _ in range(4)]
    assert [float(begun(x).loss) for _ in range(2)] == losses[:2]
    resumed.restore(begun.state(), "here")
    assert [float(resumed(x).loss) for _ in range(2)] == losses[2:]
    assert state_bytes(resumed) == state_bytes(whole)


@pytest.mark.parametrize("parts", [{}, {"micro_batch_size": 2}])
def test_a_training_step_draws_new_masks_each_time_and_others_on_each_rank(parts):
    x = Tensor(np.random.default_rng(2).standard_normal((4, 30)).astype(np.float32))
    steps = [momentum_step(parts, rank, 2) for rank in range(2)]
    for step in steps:
        step.optimizer.learning_rate.set_data(Tensor(0.0, ms.float32))
    assert len({float(step(x).loss) for step in steps for _ in range(4)}) == 8


@pytest.mark.parametrize("parts", [{}, {"micro_batch_size": 2}])
def test_a_step_that_overflows_leaves_the_masks_as_they_were(parts):
    step = momentum_step(parts | {"loss_scale": dimred.DynamicLossScale()})
    x = Tensor(1e20 * np.ones((4, 30), np.float32))
    before = step.state()["dropout_seed"]
    assert not bool(step(x).applied)
    assert step.state()["dropout_seed"] == before
