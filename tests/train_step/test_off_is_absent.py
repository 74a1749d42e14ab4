"""A part that is off is not in the compiled graph, and adds no parameter."""

from collections import Counter

import mindspore as ms
import pytest
from mindspore import nn

from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale, StaticLossScale
from dimred.train_step.precision import with_precision
from dimred.train_step.step import TrainStep
from tests.helpers.networks import TanhMLP
from tests.helpers.problems import BareStep, batches, primitives, tensors


def made_of(make) -> tuple[Counter, list[str]]:
    """Count each primitive in the compiled graph of a step, and list the names of its parameters."""
    ms.set_context(mode=ms.GRAPH_MODE)  # a fixture of the module comes before the tests' own
    network = TanhMLP()
    step = make(network, nn.Momentum(network.trainable_params(), 0.1, 0.9))
    step(*tensors(batches(1)[0]))
    structural = ("Depend", "UpdateState", "Load", "MakeTuple", "TupleGetItem")
    found = Counter({kind: n for kind, n in primitives(step).items() if not kind.endswith(structural)})
    return found, [parameter.name for parameter in step.get_parameters()]


@pytest.fixture(scope="module")
def off():
    return made_of(TrainStep)


def test_with_all_parts_off_the_graph_is_gradient_and_optimizer(off):
    bare = made_of(BareStep)
    assert off == bare
    assert sum(off[0].values()) > 10


@pytest.mark.parametrize(
    "part",
    [
        lambda network: StaticLossScale(512.0, drop_overflow=False),
        lambda network: DynamicLossScale(),
        lambda network: Clipping(1.0),
        lambda network: EMA(network, 0.9),
    ],
    ids=["static scale", "dynamic scale", "clipping", "ema"],
)
def test_with_a_part_on_the_graph_is_another(off, part):
    assert made_of(lambda network, optimizer: TrainStep(network, optimizer, parts=[part(network)]))[0] != off[0]


def test_precision_o0_is_the_network_itself():
    network = TanhMLP()
    assert with_precision(network, "O0") is network
