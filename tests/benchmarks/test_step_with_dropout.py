"""Compare a training step of a network with dropout with MindSpore's bare step, alternately in one process."""

import time

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.train_step.step import TrainStep

pytestmark = pytest.mark.benchmark
STEPS = 5  # in a round


def network(width: int, p: float) -> nn.Cell:
    layers: list[nn.Cell] = []
    for _ in range(4):
        layers += [nn.Dense(width, width), nn.ReLU(), nn.Dropout(p=p)]
    return nn.WithLossCell(nn.SequentialCell(*layers, nn.Dense(width, 10)), nn.CrossEntropyLoss())


def dimred_step(width: int, p: float) -> nn.Cell:
    loss = network(width, p)
    return TrainStep(loss, nn.Momentum(loss.trainable_params(), 0.01, 0.9))


def bare_step(width: int, p: float) -> nn.Cell:
    loss = network(width, p)
    return nn.TrainOneStepCell(loss, nn.Momentum(loss.trainable_params(), 0.01, 0.9)).set_train()


def milliseconds(step: nn.Cell, batch: tuple[Tensor, Tensor]) -> float:
    started = time.perf_counter()
    for _ in range(STEPS):
        result = step(*batch)
    (result if isinstance(result, Tensor) else result.loss).asnumpy()
    return 1e3 * (time.perf_counter() - started) / STEPS


@pytest.mark.parametrize(
    ("p", "width", "rows", "n_rounds"), [(0.3, 512, 512, 40), (0.3, 128, 64, 300), (0, 128, 64, 300)]
)
def test_cost_of_a_step(p: float, width: int, rows: int, n_rounds: int) -> None:
    """The step that is compiled first is up to a tenth faster than an equal one, so that one is not compared.

    Rounds take turns, so that a busy moment of the machine affects all.
    """
    ms.set_context(mode=ms.GRAPH_MODE)
    rng = np.random.default_rng(0)
    batch = Tensor(rng.standard_normal((rows, width)).astype(np.float32)), Tensor(rng.integers(0, 10, rows), ms.int32)
    steps = [make(width, p) for make in (bare_step, bare_step, dimred_step, dimred_step, bare_step)]
    for step in steps:
        milliseconds(step, batch)
    times = np.array([[milliseconds(step, batch) for step in steps] for _ in range(n_rounds)])
    bare, ours = times[:, [1, 4]], times[:, [2, 3]]
    print(
        f"dropout {p}, width {width}, {rows} rows: {np.median(ours):.2f} ms, of the bare step "
        f"{np.median(ours) / np.median(bare):.3f} by the medians, {ours.min() / bare.min():.3f} by the lowest"
    )
