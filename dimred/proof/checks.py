"""The checks that a device must pass: kernels and steps beside NumPy, and several ranks beside one.

``dimred doctor --full`` runs these checks, and so do the tests; ``tests/gpu`` has more for a GPU. Each returns
differences, with the limit that a correct device stays within. The limits allow for float32 rounding.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from dimred.distributed.ranks import ALONE, Ranks
from dimred.proof.difference import Difference
from dimred.proof.search_twin import Twin
from dimred.proof.small_network import TanhMLP, mlp_function, orthonormal_rows, weight_vector
from dimred.proof.step_twin import Optimizer, clip, ema
from dimred.stages.subspace_train_step import SubspaceTrainStep
from dimred.subspace.basis import SubspaceBasis
from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.step import TrainStep

N_STEPS = 10
_ROUNDING = 1e-5  # in sums of a few hundred float32 numbers, as a fraction of the largest result; TF32 rounds to 1e-3
_STEPS = 1e-4  # rounding accumulated over ten steps
_RATE = 0.1
_MOMENTUM = 0.9
_NORM = 0.5
_DECAY = 0.9
_N_COMPONENTS = 6


def _difference(name: str, found: np.ndarray, expected: np.ndarray, limit: float) -> Difference:
    largest = float(np.abs(expected).max()) or 1.0
    return Difference(name, float(np.abs(np.asarray(found, np.float64) - expected).max()) / largest, limit)


def kernels() -> list[Difference]:
    """Compare a matrix product, and a convolution with its gradients, with NumPy in float64."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((128, 128)).astype(np.float32) for _ in range(2))
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 8, 12, 12), (16, 8, 3, 3)))
    up = rng.standard_normal((4, 16, 10, 10)).astype(np.float32)  # the upstream gradient

    def weighted(x: Tensor, w: Tensor) -> Tensor:
        return (ops.conv2d(x, w) * Tensor(up)).sum()

    of_x, of_w = ms.grad(weighted, (0, 1))(Tensor(x), Tensor(w))
    windows = _windows(x.astype(np.float64))
    padded = np.pad(up.astype(np.float64), ((0, 0), (0, 0), (2, 2), (2, 2)))
    windows_up = _windows(padded)
    found = {
        "matrix product": (ops.matmul(Tensor(a), Tensor(b)), a.astype(np.float64) @ b),
        "convolution": (ops.conv2d(Tensor(x), Tensor(w)), np.einsum("nchwij,ocij->nohw", windows, w)),
        "convolution, gradient of its input": (of_x, np.einsum("nohwij,ocij->nchw", windows_up, w[:, :, ::-1, ::-1])),
        "convolution, gradient of its weights": (of_w, np.einsum("nchwij,nohw->ocij", windows, up)),
    }
    return [_difference(name, device.asnumpy(), twin, _ROUNDING) for name, (device, twin) in found.items()]


def _windows(images: np.ndarray) -> np.ndarray:
    """Return all windows of 3 x 3 pixels, (n, c, h - 2, w - 2, 3, 3)."""
    slide: Any = np.lib.stride_tricks.sliding_window_view
    windows: np.ndarray = slide(images, (3, 3), axis=(2, 3))
    return windows


def _batches(n_rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(4)
    shapes = (n_rows, 3), (n_rows, 2)
    return [
        (rng.standard_normal(shapes[0]).astype(np.float32), rng.standard_normal(shapes[1]).astype(np.float32))
        for _ in range(N_STEPS)
    ]


def _as_float64(batch: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    return tuple(part.astype(np.float64) for part in batch)


def _train(network: nn.Cell, ranks: Ranks, n_rows: int) -> tuple[np.ndarray, TrainStep]:
    """Take ten steps with clipping and EMA, each rank on its part of the rows; return the losses and the step."""
    optimizer = nn.Momentum(network.trainable_params(), _RATE, _MOMENTUM)
    average = EMA(network, _DECAY, ramp=False)
    step = TrainStep(network, optimizer, clipping=Clipping(_NORM), ema=average, ranks=ranks)
    mine = slice(ranks.rank * n_rows // ranks.group_size, (ranks.rank + 1) * n_rows // ranks.group_size)
    losses = [step(*(Tensor(part[mine]) for part in batch)).loss for batch in _batches(n_rows)]
    return np.array([float(loss.asnumpy()) for loss in losses]), step


def training_step() -> list[Difference]:
    """Compare ten training steps with momentum, clipping and EMA with their NumPy twins."""
    network = TanhMLP()
    function = mlp_function()
    weights = weight_vector(network).astype(np.float64)
    sizes = [p.size for p in network.trainable_params()]
    optimizer = Optimizer("momentum", [0.0] * len(sizes), [_RATE], momentum=_MOMENTUM)
    ends = np.cumsum(sizes)[:-1]
    expected = []
    path = []
    for batch in _batches(64):
        loss, gradient = function(weights, _as_float64(batch))
        clipped, _ = clip(np.split(gradient, ends), _NORM)
        weights = np.concatenate(optimizer.step(np.split(weights, ends), clipped))
        expected.append(loss)
        path.append(weights)
    losses, step = _train(network, ALONE, 64)
    average = np.concatenate([value.asnumpy().ravel() for value in step.ema.averages]) if step.ema else np.array([])
    return [
        _difference("losses", losses, np.array(expected), _STEPS),
        _difference("weights", weight_vector(network), weights, _STEPS),
        _difference("moving average", average, ema(path, _DECAY), _STEPS),
    ]


def search_step() -> list[Difference]:
    """Compare ten search steps with their NumPy twin, which takes over the weights after each step."""
    network = TanhMLP()
    rows = orthonormal_rows(_N_COMPONENTS, weight_vector(network).size)
    step = SubspaceTrainStep(network, SubspaceBasis(rows))
    twin = Twin(mlp_function(), rows, weight_vector(network))
    losses = []
    sizes = []
    differences = []
    for batch in _batches(64):
        result = step(*map(Tensor, batch))
        expected = twin.step(_as_float64(batch))
        weights = weight_vector(network)
        losses.append((float(result.loss.asnumpy()), expected["loss"]))
        sizes.append((result.step_size, expected["step_size"]))
        differences.append(_difference("weights after each step", weights, twin.weights, _STEPS))
        twin.weights = weights.astype(np.float64)
    found, expected_losses = np.array(losses).T
    step_sizes, expected_sizes = np.array(sizes).T
    return [
        _difference("losses", found, expected_losses, _STEPS),
        _difference("step sizes", step_sizes, expected_sizes, 1e-12),
        max(differences, key=lambda difference: np.nan_to_num(difference.value, nan=np.inf)),
    ]


def ranks_beside_one(ranks: Ranks) -> list[Difference]:
    """Compare ten training steps on all ranks, each with its part of the rows, with ten on one rank."""
    alone = TanhMLP()
    together = TanhMLP()
    expected_losses, _ = _train(alone, ALONE, 64)
    losses, _ = _train(together, ranks, 64)
    ranks.check_same("weights after ten steps", weight_vector(together).tobytes())
    return [
        _difference("losses", losses, expected_losses, _STEPS),
        _difference("weights", weight_vector(together), weight_vector(alone), _STEPS),
    ]


CHECKS: dict[str, Callable[[], list[Difference]]] = {
    "kernels beside NumPy": kernels,
    "a training step beside its NumPy twin": training_step,
    "a search step beside its NumPy twin": search_step,
}
"""The checks for one rank, in each mode."""


def prove(ranks: Ranks) -> str:
    """Run the checks for one rank in both modes, or the check for several ranks; return the differences as JSON.

    Returns:
        ``{check: [[name, value, limit], ...]}``; if an error ended a check, its text replaces the list.
    """
    questions: list[tuple[str, int, Callable[[], list[Difference]]]] = []
    for mode, number in {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}.items():
        if ranks.group_size > 1:
            questions.append((f"{ranks.group_size} ranks beside one, {mode}", number, lambda: ranks_beside_one(ranks)))
        else:
            questions += [(f"{name}, {mode}", number, check) for name, check in CHECKS.items()]
    answers: dict[str, list[Difference] | str] = {}
    for name, number, check in questions:
        ms.set_context(mode=number)
        try:
            answers[name] = check()
        except Exception as error:
            answers[name] = f"{type(error).__name__}: {error}"
            if ranks.group_size > 1:  # this rank can't wait for the others any more
                break
    return json.dumps(answers)
