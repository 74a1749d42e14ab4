"""What a step does to the modes of its cells, and which optimizers and losses it refuses."""

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.errors import ConfigError
from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale, StaticLossScale
from dimred.train_step.optimizers import make_optimizer
from dimred.train_step.schedule_free import ScheduleFree
from dimred.train_step.step import TrainStep
from tests.helpers.modes import slow_in_graph
from tests.helpers.networks import basis_for, state_bytes
from tests.helpers.optimizers import OPTIMIZERS, optimizer_of

pytestmark = pytest.mark.usefixtures("mode")

X, Y = (Tensor(np.random.default_rng(1).normal(size=(7, n)).astype(np.float32)) for n in (5, 2))


def with_batch_norm() -> nn.Cell:
    return nn.SequentialCell(nn.Dense(5, 4), nn.BatchNorm1d(4), nn.Dropout(p=0.5), nn.Dense(4, 2))


@pytest.mark.parametrize("stage", [1, 2])
def test_a_step_that_is_called_trains_whatever_was_measured_in_between(stage: int) -> None:
    network = with_batch_norm()
    loss, weights = nn.WithLossCell(network, nn.MSELoss()), network.trainable_params()
    make = {
        1: lambda: TrainStep(loss, nn.SGD(weights)),
        2: lambda: SubspaceTrainStep(loss, basis_for(network), rule="sgd", learning_rate=0.01),
    }
    step = make[stage]()
    for _ in range(2):
        mean = network[1].moving_mean.asnumpy().copy()
        step(X, Y)
        assert network[2].training
        assert (network[1].moving_mean.asnumpy() != mean).all()
        network.set_train(False)  # as a measurement would do


@slow_in_graph
@pytest.mark.parametrize("parts", [lambda network: [], lambda network: [EMA(network), DynamicLossScale()]])
def test_a_step_that_weighs_nothing_leaves_the_network_s_cells_alone(parts: Callable[[nn.Cell], list]) -> None:
    network = nn.WithLossCell(with_batch_norm(), nn.CrossEntropyLoss())
    before = [*network.cells_and_names()]
    step = TrainStep(network, nn.SGD(network.trainable_params()), parts=parts(network))
    step(X, Tensor(np.zeros(7, np.int32)))
    assert [*network.cells_and_names()] == before


class Visited(nn.Dense):
    """A layer that notes each visit by MindSpore, with the name of the compiled graph."""

    visits: tuple[str, ...] = ()

    @property
    def compile_phase(self) -> str:
        return nn.Cell.compile_phase.fget(self)

    @compile_phase.setter
    def compile_phase(self, phase: str) -> None:
        self.visits = (*self.visits, phase)
        nn.Cell.compile_phase.fset(self, phase)


def test_cells_are_visited_when_another_graph_is_called_and_not_at_each_call() -> None:
    layer = Visited(5, 2)
    step = TrainStep(nn.WithLossCell(layer, nn.MSELoss()), nn.SGD(layer.trainable_params()))
    n_visits = []
    for rows in (7, 7, 3, 3, 7):
        step(X[:rows], Y[:rows])
        n_visits.append(len(layer.visits))
    first, same, other, same_as_other, back = n_visits
    assert (first, other) == (same, same_as_other)
    if ms.get_context("mode") == ms.GRAPH_MODE:
        assert 0 < first < other < back
        assert layer.visits[0] == layer.visits[-1]


def test_a_search_visits_them_at_its_first_step() -> None:
    layer = Visited(5, 2)
    step = SubspaceTrainStep(nn.WithLossCell(layer, nn.MSELoss()), basis_for(layer))
    step(X, Y)
    before = layer.visits
    step(X, Y)
    assert layer.visits == before


def test_a_frozen_part_may_stay_in_evaluation_mode() -> None:
    network = with_batch_norm()
    for weight in network[1].trainable_params():
        weight.requires_grad = False
    step = TrainStep(nn.WithLossCell(network, nn.MSELoss()), nn.SGD(network.trainable_params())).set_train(True)
    network[1].set_train(False)
    step(X, Y)
    assert network[1].moving_mean.asnumpy().tolist() == [0, 0, 0, 0]


def test_an_optimizer_or_a_loss_that_can_not_train_the_network_is_refused() -> None:
    network, other = nn.Dense(5, 2), nn.Dense(2, 2)
    loss = nn.WithLossCell(network, nn.MSELoss())
    with pytest.raises(ConfigError, match="optimizer has 'weight', which is not a trainable parameter of the network"):
        TrainStep(loss, nn.SGD(other.trainable_params()))
    with pytest.raises(ConfigError, match=r"optimizer is 0\.1; give one"):
        TrainStep(loss, 0.1)
    half = nn.Dense(5, 2, dtype=ms.float16)
    with pytest.raises(ConfigError, match="the weight 'weight' is Float16; weights must be float32"):
        TrainStep(nn.WithLossCell(half, nn.MSELoss()), nn.SGD(half.trainable_params()))
    before = state_bytes(network)
    step = TrainStep(nn.WithLossCell(network, nn.MSELoss(reduction="none")), nn.SGD(network.trainable_params()))
    with pytest.raises(ConfigError, match=r"Float32 \(7, 2\) as its loss; a step needs the mean over the batch"):
        step(X, Y)
    step = TrainStep(LossAndOutputs(network), nn.SGD(network.trainable_params()))
    with pytest.raises(ConfigError, match=r"Float32 \(\) and Float32 \(7, 2\) as its loss; a step needs"):
        step(X, Y)
    assert state_bytes(network) == before
    twice = nn.Momentum(network.trainable_params(), 0.1, 0.9, loss_scale=1024.0)
    with pytest.raises(ConfigError, match="optimizer has a loss_scale of 1024, and would divide by it what"):
        TrainStep(loss, twice, parts=[StaticLossScale(1024.0)])
    groups = [{"params": network.trainable_params(), "lr": 0.1}]
    with pytest.raises(ConfigError, match="params has groups with their own lr"):
        ScheduleFree(groups, 1.0)


@pytest.mark.parametrize(("name", "trains"), [("momentum", True), ("learning_rate", True), ("global_step", False)])
def test_a_name_that_a_network_shares_with_the_optimizer_is_refused(name: str, trains: bool) -> None:
    """MindSpore would take the weight for the momentum or the rate, or rename every parameter."""
    network = nn.SequentialCell(nn.Dense(5, 2), nn.Dense(2, 2))
    network.insert_param_to_cell(name, ms.Parameter(ms.Tensor(0.5, ms.float32), name=name, requires_grad=trains))
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    with pytest.raises(ConfigError, match=rf"named '{name}'.*; rename"):
        TrainStep(nn.WithLossCell(network, nn.MSELoss()), optimizer)
    if trains:
        with pytest.raises(ConfigError, match=f"a weight of the network is named '{name}'"):
            make_optimizer("momentum", network.trainable_params(), [0.1, 0.2])


def test_every_name_that_an_optimizer_gives_to_a_parameter_of_its_own_is_refused() -> None:
    """The names are those of all optimizers that are installed, so that a new one can't be missed."""
    kinds = [kind for kind in OPTIMIZERS if issubclass(kind, nn.Optimizer)]

    def own_names(kind: type, weight: str) -> set[str]:
        parameter = ms.Parameter(ms.Tensor([0.5]), name=weight)
        return {one.name for one in optimizer_of(kind, [parameter]).get_parameters()}

    names = set[str]().union(*(own_names(kind, "a.weight") & own_names(kind, "b") for kind in kinds))
    assert {"learning_rate", "momentum", "mu_schedule"} <= names
    for name in names:
        with pytest.raises(ConfigError, match=f"a weight of the network is named '{name}'"):
            make_optimizer("momentum", [ms.Parameter(ms.Tensor([0.5]), name=name)], 0.1)


class Given(nn.Cell):
    """A network whose inputs are no tensors, and which returns its loss as it is told."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = nn.Dense(5, 2), kind

    def construct(self, pair: tuple, factor: float) -> Any:
        loss = ((self.layer(pair[0]) - pair[1]) ** 2).mean() * factor
        if self.kind == "dictionary":
            return {"loss": loss}
        if self.kind == "none":
            return None
        if self.kind == "pair":
            return loss, None
        return loss


def test_inputs_need_not_be_tensors_where_nothing_is_cut() -> None:
    network = Given("")
    step = TrainStep(network, nn.SGD(network.trainable_params()))
    outputs = X.asnumpy() @ network.layer.weight.asnumpy().T + network.layer.bias.asnumpy()
    expected = 0.5 * ((outputs - Y.asnumpy()) ** 2).mean()
    assert float(step((X, Y), 0.5).loss) == pytest.approx(expected, rel=1e-5)


@slow_in_graph
@pytest.mark.parametrize("stage", [1, 2])
def test_arrays_are_taken_as_tensors_in_float32_and_other_arrays_are_refused(stage: int) -> None:
    ends = []
    for x, y in ((X, Y), (X.asnumpy().astype(np.float64), Y.asnumpy().T.astype(">f4").T)):
        network = nn.WithLossCell(nn.Dense(5, 2, weight_init="ones", bias_init="zeros"), nn.MSELoss())
        if stage == 1:
            step = TrainStep(network, nn.SGD(network.trainable_params(), 0.1))
        else:
            step = SubspaceTrainStep(network, basis_for(network), rule="sgd", learning_rate=0.01)
        ends.append((float(step(x, y).loss), state_bytes(network)))
    assert ends[0] == ends[1]
    with pytest.raises(
        ConfigError, match=r"^input 2 of the step is an array of type <U1 and shape \(2,\); give numbers"
    ):
        step(X, np.array(["a", "b"]))


@pytest.mark.parametrize("kind", ["dictionary", "none", "pair"])
def test_a_loss_that_is_no_tensor_is_named(kind: str) -> None:
    network = Given(kind)
    step = TrainStep(network, nn.SGD(network.trainable_params()))
    with pytest.raises(ConfigError, match="no tensor as its loss; a step needs the mean over the batch"):
        step((X, Y), 0.5)


class LossAndOutputs(nn.Cell):
    """A network with its loss that returns its outputs too."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.loss = network, nn.MSELoss()

    def construct(self, x: ms.Tensor, y: ms.Tensor) -> tuple[ms.Tensor, ms.Tensor]:
        outputs = self.network(x)
        return self.loss(outputs, y), outputs
