"""Compare PyNative with graph mode on this CPU, and print a Markdown table: python -m tests.benchmarks.modes

Both modes are measured in turn in one process, each with a step that no other mode has called.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from dimred.models.resnet import resnet
from dimred.runs.device import set_up
from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.train_step.step import TrainStep
from tests.helpers.networks import PlainBasis, orthonormal_rows

MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}
N_COMPONENTS, ROUNDS, WARM_UP = 32, 15, 3


def training(network: nn.Cell) -> nn.Cell:
    """Make a training step with momentum."""
    optimizer = nn.Momentum(network.trainable_params(), 1e-4, 0.9)
    return TrainStep(nn.WithLossCell(network, nn.CrossEntropyLoss()), optimizer)


def search(network: nn.Cell) -> nn.Cell:
    """Make a search step that makes one trial."""
    basis = PlainBasis(orthonormal_rows(N_COMPONENTS, sum(p.size for p in network.trainable_params())))
    return SubspaceTrainStep(nn.WithLossCell(network, nn.CrossEntropyLoss()), basis, max_trials=1)


class Case(NamedTuple):
    """A step, its network, and the pixels and the rows of its batches."""

    title: str
    make: Callable[[nn.Cell], nn.Cell]
    network: str
    pixels: int
    rows: int


CASES = (
    Case("a training step of the quick start's network", training, "resnet_small", 16, 64),
    Case("a search step of the quick start's network", search, "resnet_small", 16, 256),
    Case("a training step of ResNet-18", training, "resnet18", 32, 32),
    Case("a search step of ResNet-18, one trial", search, "resnet18", 32, 32),
)


def seconds(mode: str, step: Callable[..., Any], batch: tuple[Tensor, ...]) -> float:
    """Return the seconds of a step, and of its loss on the host."""
    ms.set_context(mode=MODES[mode])
    started = time.perf_counter()
    step(*batch).loss.asnumpy()
    return time.perf_counter() - started


def row(case: Case) -> str:
    """Measure a case in both modes, in turn, and return its row of the table."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((case.rows, 3, case.pixels, case.pixels)).astype(np.float32)
    batch = (Tensor(images), Tensor(rng.integers(0, 10, case.rows).astype(np.int32)))
    steps = {mode: case.make(resnet(case.network, 10)) for mode in MODES}
    firsts = {mode: seconds(mode, step, batch) for mode, step in steps.items()}
    for _ in range(WARM_UP):
        for mode, step in steps.items():
            seconds(mode, step, batch)
    rounds = [{mode: seconds(mode, step, batch) for mode, step in steps.items()} for _ in range(ROUNDS)]
    ratios = [times["pynative"] / times["graph"] for times in rounds]
    graph, pynative = (1e3 * min(times[mode] for times in rounds) for mode in MODES)
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    first = f"{firsts['graph']:.1f}, {firsts['pynative']:.1f}"
    title = f"{case.title}, {case.rows} images of {case.pixels} px"
    return f"| {title} | {graph:.1f} | {pynative:.1f} | {spread} | {first} |"


def main() -> None:
    """Print the table; with the word ``blocking``, each operation ends before the next one is launched."""
    set_up(1)
    if "blocking" in sys.argv[1:]:
        ms.runtime.launch_blocking()
    print("| step | graph, least ms | PyNative, least ms | PyNative / graph, median | first step, s |")
    print("|---|---|---|---|---|")
    for case in CASES:
        print(row(case), flush=True)


if __name__ == "__main__":
    main()
