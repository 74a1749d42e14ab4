"""Compare a search step with its necessary parts and with MindSpore boost's step, and measure its memory.

ResNet-18 at 10 classes (11.2 M weights), batch 32, 32 px, k = 32, float32, graph mode. Run with -m benchmark -s.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from dimred.stages.subspace_train_step import SubspaceTrainStep
from tests.helpers.networks import PlainBasis
from tests.helpers.resnet18 import PlainGradient, network_and_batches

pytestmark = pytest.mark.benchmark

N_COMPONENTS = 32
MEGABYTE = 2**20


def random_rows(n_weights: int, path: Path) -> np.ndarray:
    """Write rows of length 1, nearly orthogonal, and return them as a memory-mapped file."""
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(N_COMPONENTS, n_weights))
    rng = np.random.default_rng(2)
    for row in rows:
        row[:] = rng.standard_normal(n_weights, dtype=np.float32) / np.sqrt(n_weights)
    rows.flush()
    return np.load(path, mmap_mode="r")


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


class Parts:
    """The parts that a step can't do without, each timed alone: a batch gives their seconds by name."""

    def __init__(self, network: nn.Cell, step: SubspaceTrainStep, n_weights: int):
        self.plain, self.step = PlainGradient(network), step
        self.vector = Tensor(np.ones(n_weights, np.float32))
        self.coordinates = np.ones(N_COMPONENTS)

    def __call__(self, batch) -> dict[str, float]:
        return {
            "gradient": seconds(lambda: self.plain(*batch)[0].asnumpy()),
            "forward": seconds(lambda: self.step.objective.loss(batch)),
            "project": seconds(lambda: self.step.subspace.project(self.vector)),
            "back_project": seconds(lambda: self.step.subspace.back_project(self.coordinates)[0].asnumpy()),
        }

    @staticmethod
    def needed(part: dict[str, float], n_trials: int, n_back_projections: int) -> float:
        return (
            part["gradient"] + n_trials * part["forward"] + part["project"] + n_back_projections * part["back_project"]
        )


@pytest.mark.parametrize("alpha", [0.0, 0.001])
def test_step_beside_the_sum_of_its_parts(alpha, tmp_path):
    network, batches = network_and_batches()
    n_weights = sum(p.size for p in network.trainable_params())
    step = SubspaceTrainStep(network, PlainBasis(random_rows(n_weights, tmp_path / "p.npy")), alpha=alpha)
    parts = Parts(network, step, n_weights)
    for batch in batches[:2]:
        parts(batch)
        step(*batch)
    ratios, wholes, needs = [], [], []
    for batch in batches[2:]:
        before = parts(batch)
        found = None

        def take(batch=batch):
            nonlocal found
            found = step(*batch)

        whole = seconds(take)
        after = parts(batch)
        part = {name: (before[name] + after[name]) / 2 for name in before}
        needed = parts.needed(part, found.n_trials, 1 if alpha == 0 else 2)
        ratios.append(whole / needed)
        wholes.append(whole)
        needs.append(needed)
        shares = {name: f"{1e3 * lap:.0f}" for name, lap in found.seconds.items()}
        print(
            f"alpha {alpha}: step {1e3 * whole:.0f} ms, parts {1e3 * needed:.0f} ms ({found.n_trials} trials), "
            f"ratio {ratios[-1]:.2f}; step's laps {shares}; "
            + ", ".join(f"{name} {1e3 * value:.0f}" for name, value in part.items())
        )
    print(
        f"alpha {alpha}: ratio {statistics.median(ratios):.3f} in the median, {min(wholes) / min(needs):.3f} of the "
        "fastest rounds, where other programs disturb least (goal at most 1.25)"
    )


def boost_step(network: nn.Cell, rows: np.ndarray) -> nn.Cell:
    """Make MindSpore boost's own stage-2 step, as ``BoostTrainOneStepCell`` drives it without a loss scale."""
    from mindspore.boost.dim_reduce import DimReduce

    class BoostStep(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.network = network
            self.weights = ms.ParameterTuple(network.trainable_params())
            self.clone = self.weights.clone(prefix="weights_clone", init="same")
            optimizer = nn.SGD(network.trainable_params(), learning_rate=1)
            self.dim_reduce = DimReduce(
                network, optimizer, self.weights, np.asarray(rows), N_COMPONENTS, 0.55, 0.9, 0.001, 0.4, 0, 1
            )
            self.grad = ops.GradOperation(get_by_list=True)
            self.sens = Tensor(1.0, ms.float32)

        def construct(self, images, labels):
            loss = self.network(images, labels)
            grads = self.grad(self.network, self.weights)(images, labels)
            return ops.depend(loss, self.dim_reduce(loss, grads, self.sens, self.weights, self.clone, images, labels))

    step = BoostStep()
    step.set_train(True)
    return step


def test_step_beside_boosts(tmp_path):
    """Both take boost's two trials and alpha 0.001; boost compiles its step into one graph."""
    network, batches = network_and_batches()
    n_weights = sum(p.size for p in network.trainable_params())
    rows = random_rows(n_weights, tmp_path / "p.npy")
    other_network, _ = network_and_batches()
    ours = SubspaceTrainStep(network, PlainBasis(rows), max_trials=2)
    theirs = boost_step(other_network, rows)
    parts = Parts(network, ours, n_weights)
    for batch in batches[:2]:
        ours(*batch)
        theirs(*batch).asnumpy()
        parts(batch)
    times = []
    for batch in batches[2:]:
        found = None

        def take(batch=batch):
            nonlocal found
            found = ours(*batch)

        our_seconds = seconds(take)
        their_seconds = seconds(lambda batch=batch: theirs(*batch).asnumpy())
        needed = parts.needed(parts(batch), found.n_trials, 2)
        times.append((our_seconds, their_seconds, needed))
        print(
            f"ours {1e3 * our_seconds:.0f} ms ({found.n_trials} trials), boost {1e3 * their_seconds:.0f} ms; the "
            f"parts that ours can't do without {1e3 * needed:.0f} ms"
        )
    median, least = (statistics.median(time[number] / time[1] for time in times) for number in (0, 2))
    whole = sum(time[0] for time in times) / sum(time[1] for time in times)
    print(
        f"ratio {median:.3f} in the median, {whole:.3f} of all rounds together, in which the two need not take equally "
        f"many trials (goal at most 0.5); of the necessary parts alone {least:.3f} in the median"
    )


def test_memory_beside_a_plain_gradient(tmp_path):
    """Compare the private memory of a process that takes gradients only with one that searches in a mapped basis."""
    network, _ = network_and_batches()
    n_weights = sum(p.size for p in network.trainable_params())
    random_rows(n_weights, tmp_path / "p.npy")

    def private_bytes(what: str) -> int:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.search_step_memory", tmp_path / "p.npy", what],
            capture_output=True,
            text=True,
            check=True,
        )
        return 1024 * int(done.stdout)

    plain = private_bytes("plain")
    print(f"\na vector {4 * n_weights / MEGABYTE:.0f} MB, a process with plain gradients {plain / MEGABYTE:.0f} MB")
    for alpha in ("0.0", "0.001"):
        more = private_bytes(alpha) - plain
        print(f"alpha {alpha}: {more / MEGABYTE:.0f} MB more, that is {more / (4 * n_weights):.1f} vectors")
