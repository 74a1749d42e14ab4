"""Compare a training step of a network with dropout with MindSpore's bare step, alternately in one process."""

import time
from collections.abc import Callable

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.train_step.step import TrainStep

pytestmark = pytest.mark.benchmark
ROUNDS, STEPS = 40, 5


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


@pytest.mark.parametrize("makers", [(bare_step, dimred_step), (dimred_step, bare_step)], ids=["bare first", "last"])
@pytest.mark.parametrize(("p", "width", "rows"), [(0.3, 512, 512), (0.3, 128, 64), (0.0, 128, 64)])
def test_cost_of_a_step(p: float, width: int, rows: int, makers: tuple[Callable[..., nn.Cell], ...]) -> None:
    """Rounds alternate, so that a busy moment of the machine affects both; the lowest time of each is compared."""
    ms.set_context(mode=ms.GRAPH_MODE)
    rng = np.random.default_rng(0)
    batch = Tensor(rng.standard_normal((rows, width)).astype(np.float32)), Tensor(rng.integers(0, 10, rows), ms.int32)
    steps = {make: make(width, p) for make in makers}
    for step in steps.values():
        milliseconds(step, batch)
    rounds = [{make: milliseconds(step, batch) for make, step in steps.items()} for _ in range(ROUNDS)]
    best = {make: min(times[make] for times in rounds) for make in steps}
    print(
        f"dropout {p}, width {width}, {rows} rows: {best[dimred_step]:.2f} ms, "
        f"{best[dimred_step] / best[bare_step]:.3f} of the bare step"
    )
