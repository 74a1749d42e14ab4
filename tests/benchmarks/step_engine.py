"""Take steps on a ResNet-18 of any width, 32 images of 32 pixels, in a process of its own; see ``measured``.

A step's necessary parts are a gradient, a loss for each trial, P g, and P' z for the direction and for what lies
outside the subspace. Each is timed alone before and after every step of a search.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from scipy.linalg import hadamard

from dimred.models.resnet import BasicBlock, ResNet
from dimred.stages.subspace_train_step import SubspaceTrainStep
from tests.benchmarks import measured
from tests.benchmarks.measured import Engine, Point
from tests.helpers.networks import PlainBasis

BATCH, STEPS, FIRST = 32, 10, 2  # the first steps compile
TRIALS = 2  # boost's; the first steps of a search may take more
Batch = tuple[Tensor, ...]
Cost = dict[str, float]


def network_of(point: Point) -> nn.Cell:
    """Build the network of about so many weights: ResNet-18 has 11.2 million, and a width of 64."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(1)
    width = round(64 * (point["weights"] / 11_180_000) ** 0.5)
    widths = tuple(width * factor for factor in (1, 2, 4, 8))
    network = ResNet(BasicBlock, (2, 2, 2, 2), widths, 10, "imagenet")
    return nn.WithLossCell(network, nn.CrossEntropyLoss()).set_train(True)


def batches() -> list[Batch]:
    rng = np.random.default_rng(1)
    shape = BATCH, 3, 32, 32
    return [
        (Tensor(rng.standard_normal(shape, np.float32)), Tensor(rng.integers(0, 10, BATCH).astype(np.int32)))
        for _ in range(FIRST + STEPS)
    ]


def prepare(folder: Path, point: Point) -> Cost:
    """Write orthonormal rows: Walsh functions, whose entries are all of one size."""
    n_weights, k = sum(p.size for p in network_of(point).trainable_params()), point["k"]
    rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.float32, (k, n_weights))
    for row, signs in zip(rows, hadamard(128), strict=False):
        row[:] = np.resize(signs.astype(np.float32) / np.float32(n_weights**0.5), n_weights)
    rows.flush()
    return {}


def seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


class PlainGradient(nn.Cell):
    """A cell that computes loss and gradient, as any training step must."""

    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.gradient = ops.value_and_grad(network, None, network.trainable_params())

    def construct(self, *inputs: Tensor) -> Any:
        return self.gradient(*inputs)


def search(folder: Path, point: Point) -> Cost:
    network = network_of(point)
    basis = PlainBasis(np.load(folder / "rows.npy", mmap_mode="r"))
    step, plain = SubspaceTrainStep(network, basis, max_trials=TRIALS), PlainGradient(network)
    vector = Tensor(np.ones(basis.components.shape[1], np.float32))
    wholes, parts, trials = [], [], []

    def laps(batch: Batch) -> np.ndarray:
        return np.array(
            [
                seconds(lambda: plain(*batch)[0].asnumpy()),
                seconds(lambda: step.objective.loss(batch)),
                seconds(lambda: step.subspace.project(vector)),
                seconds(lambda: step.subspace.back_project(np.ones(point["k"]))[0].asnumpy()),
            ]
        )

    for batch in batches():
        before, started = laps(batch), time.perf_counter()
        result = step(*batch)
        wholes.append(time.perf_counter() - started)
        trials.append(result.n_trials)
        parts.append((before + laps(batch)) / 2 @ [1, trials[-1], 1, 2])
    figures = {"seconds": wholes, "parts": parts, "trials": trials}
    return {name: statistics.median(values[FIRST:]) for name, values in figures.items()}


def plain_step(folder: Path, point: Point) -> Cost:
    network = network_of(point)
    optimizer = nn.Momentum(network.trainable_params(), 0.001, 0.9)
    return median_of(nn.TrainOneStepCell(network, optimizer).set_train())


def boost(folder: Path, point: Point) -> Cost:
    """Take boost's own stage-2 step, as ``BoostTrainOneStepCell`` drives it without a loss scale."""
    from mindspore.boost.dim_reduce import DimReduce

    network, rows = network_of(point), np.load(folder / "rows.npy")

    class BoostStep(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.network = network
            self.weights = ms.ParameterTuple(network.trainable_params())
            self.clone = self.weights.clone(prefix="weights_clone", init="same")
            optimizer = nn.SGD(network.trainable_params(), learning_rate=1)
            self.dim_reduce = DimReduce(network, optimizer, self.weights, rows, point["k"], 0.55, 0.9, 0.001, 0.4, 0, 1)
            self.grad = ops.GradOperation(get_by_list=True)
            self.sens = Tensor(1.0, ms.float32)

        def construct(self, images: Tensor, labels: Tensor) -> Tensor:
            loss = self.network(images, labels)
            grads = self.grad(self.network, self.weights)(images, labels)
            return ops.depend(loss, self.dim_reduce(loss, grads, self.sens, self.weights, self.clone, images, labels))

    return median_of(BoostStep().set_train())


def median_of(step: nn.Cell) -> Cost:
    """Take the steps; return the median of their seconds."""
    times = [seconds(lambda batch=batch: step(*batch).asnumpy()) for batch in batches()]  # type: ignore[misc]
    return {"seconds": statistics.median(times[FIRST:])}


ENGINES: dict[str, Engine] = {
    "prepare": prepare,
    "a search step": search,
    "a plain step": plain_step,
    "MindSpore boost's step": boost,
}

if __name__ == "__main__":
    measured.main(ENGINES)
