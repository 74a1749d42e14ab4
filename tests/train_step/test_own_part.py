"""A part of one's own, from outside: both steps use it, its state is restored, and its numbers are in the records."""

from typing import ClassVar

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.train_step.clipping import Clipping
from dimred.train_step.part import GradientPart
from dimred.train_step.step import TrainStep
from tests.helpers.networks import TanhMLP, basis_for, mlp_function, weight_vector
from tests.helpers.problems import batches, changed, tensors, values

_each = ops.HyperMap()


class Centralisation(GradientPart):
    """Subtract a gradient's mean (after Yong et al., Gradient Centralization, 2020), and count how often."""

    name = "centralisation"
    telemetry: ClassVar[tuple[str, ...]] = ("n_centred",)

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.count = Parameter(Tensor(0, ms.int32), name="centralisation.count", requires_grad=False)

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        count = ops.assign_add(self.count, 1)
        return _each(_centred, gradients), (count + 0,)


def _centred(gradient: Tensor) -> Tensor:
    return gradient - gradient.mean()


def train_step(network: nn.Cell, **options) -> nn.Cell:
    return TrainStep(network, nn.SGD(network.trainable_params(), 1.0), **options)


def search_step(network: nn.Cell, **options) -> nn.Cell:
    return SubspaceTrainStep(network, basis_for(network), alpha=0.01, **options)


@pytest.mark.parametrize(("options", "is_graph"), [({}, False), ({"micro_batch_size": 3}, True)], ids=str)
def test_training_uses_it_before_the_parts_after_it(options: dict, is_graph: bool, pynative: None) -> None:
    ms.set_context(mode=ms.GRAPH_MODE if is_graph else ms.PYNATIVE_MODE)
    network, batch = TanhMLP(), batches(1)[0]
    before = weight_vector(network)
    result = train_step(network, parts=[Centralisation(), Clipping(0.1)], **options)(*tensors(batch))
    _, gradient = mlp_function()(before.astype(np.float64), batch)
    ends = np.cumsum([weight.size for weight in network.trainable_params()])[:-1]
    centred = np.concatenate([part - part.mean() for part in np.split(gradient, ends)])
    norm = np.linalg.norm(centred)
    np.testing.assert_allclose(before - weight_vector(network), centred * min(1.0, 0.1 / norm), atol=1e-5)
    record = result.record()
    assert record["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert record["n_centred"] == 1


def test_a_search_uses_it_on_the_whole_gradient(pynative: None) -> None:
    network, batch = TanhMLP(), batches(1)[0]
    _, gradient = mlp_function()(weight_vector(network).astype(np.float64), batch)
    result = search_step(network, parts=[Centralisation()])(*tensors(batch))
    assert result.grad_norm == pytest.approx(np.linalg.norm(gradient - gradient.mean()), rel=1e-4)
    assert result.record()["n_centred"] == 1


@pytest.mark.parametrize("make", [train_step, search_step])
def test_its_state_goes_on(make, pynative: None) -> None:
    steps = [make(TanhMLP(), parts=[Centralisation()]) for _ in range(2)]
    for batch in batches(2):
        steps[0](*tensors(batch))
    steps[1].restore(steps[0].state(), "the state")
    assert [step.parts[0].parameters[0].name for step in steps] == ["centralisation.count"] * 2
    assert steps[1](*tensors(batches(1)[0])).record()["n_centred"] == 3
    steps[0](*tensors(batches(1)[0]))
    assert not changed(values(steps[0]), values(steps[1]))
