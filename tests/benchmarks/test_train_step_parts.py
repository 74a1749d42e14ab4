"""Compare a training step with each of its parts with a bare step of gradient and optimizer, on ResNet-18.

The first step's time is that of compiling the graph.
"""

import statistics
import time

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.models.resnet import resnet
from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.interval_mean import IntervalMean
from dimred.train_step.loss_scale import DynamicLossScale, StaticLossScale
from dimred.train_step.optimizers import make_optimizer
from dimred.train_step.precision import with_precision
from dimred.train_step.step import TrainStep
from tests.helpers.problems import BareStep

pytestmark = pytest.mark.benchmark
ROWS, PIXELS, ROUNDS = 16, 32, 7

PARTS = {
    "none": lambda network: {},
    "static scale": lambda network: {"parts": [StaticLossScale(drop_overflow=False)]},
    "dynamic scale": lambda network: {"parts": [DynamicLossScale()]},
    "clipping": lambda network: {"parts": [Clipping(1.0)]},
    "ema": lambda network: {"parts": [EMA(network, 0.999)]},
    "interval mean": lambda network: {"parts": [IntervalMean(network)]},
    "2 micro-batches": lambda network: {"micro_batch_size": ROWS // 2},
}


def seconds(step: nn.Cell, batch: tuple[Tensor, ...]) -> float:
    started = time.perf_counter()
    result = step(*batch)
    (result if isinstance(result, Tensor) else result.loss).asnumpy()
    return time.perf_counter() - started


def make(part: str) -> nn.Cell:
    network = resnet("resnet18", 10)
    if part == "O2 float16":
        network = with_precision(network, "O2")
    with_loss = nn.WithLossCell(network, nn.CrossEntropyLoss())
    name = part if part in ("sgd", "adamw", "schedule_free") else "momentum"
    optimizer = make_optimizer(name, network.trainable_params(), 1e-4)
    step = (
        BareStep(with_loss, optimizer)
        if part == "bare"
        else TrainStep(with_loss, optimizer, **PARTS.get(part, PARTS["none"])(network))
    )
    step.set_train(True)
    return step


@pytest.mark.parametrize(
    "parts",
    [
        ["none", "static scale", "clipping", "ema", "interval mean"],
        ["dynamic scale", "2 micro-batches"],
        ["adamw", "schedule_free", "O2 float16"],
    ],
    ids=str,
)
def test_cost_of_each_part(parts: list[str]) -> None:
    """Rounds alternate between the steps, so that a busy moment of the machine affects all of them."""
    ms.set_context(mode=ms.GRAPH_MODE)
    rng = np.random.default_rng(0)
    images = Tensor(rng.standard_normal((ROWS, 3, PIXELS, PIXELS)).astype(np.float32))
    batch = (images, Tensor(rng.integers(0, 10, ROWS).astype(np.int32)))
    steps = {part: make(part) for part in ["bare", *parts]}
    firsts = {part: seconds(step, batch) for part, step in steps.items()}
    for step in steps.values():
        seconds(step, batch)
    rounds = [{part: seconds(step, batch) for part, step in steps.items()} for _ in range(ROUNDS)]
    for part in steps:
        ratio = statistics.median(times[part] / times["bare"] for times in rounds)
        print(
            f"{part}: {1e3 * min(times[part] for times in rounds):.0f} ms, {ratio:.2f} of the bare step in the median; "
            f"first step {firsts[part]:.1f} s, {firsts[part] / firsts['bare']:.2f} of the bare one's"
        )
