"""A regression that trains in milliseconds: two inputs, two float labels, no BatchNorm; with some unusable metrics."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor, mint, nn

N_LABELS = 2
HERE = "tests.helpers.tiny_regression"
TASK: dict[str, Any] = {
    "seed": 3,
    "model": {"name": f"{HERE}:network", "n_classes": N_LABELS},
    "data": {"dataset": f"{HERE}:samples", "batch_size": 6, "workers": 1},
    "loss": "mindspore.nn:MSELoss",
    "metric": f"{HERE}:absolute_error",
    "callback": f"{HERE}:callback",
}
"""Keys that the configurations of both stages share."""


def samples(data: Path, split: str, seed: int | None) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Draw 24 samples to train on, or 9 to measure on, the last of which do not fill a batch."""
    rng = np.random.default_rng(len(split))
    n = 24 if split == "train" else 9
    first, second = rng.normal(size=(n, 3)), rng.normal(size=(n, 2))
    labels = np.tanh(first[:, :2] + second)
    return [(a.astype(np.float32), b.astype(np.float32), c) for a, b, c in zip(first, second, labels, strict=True)]


class TwoInputs(nn.Cell):
    def __init__(self, n_outputs: int):
        super().__init__()
        self.hidden = nn.Dense(5, 8, weight_init="normal", bias_init="zeros")
        self.last = nn.Dense(8, n_outputs, weight_init="normal", bias_init="zeros")

    def construct(self, first: Tensor, second: Tensor) -> Tensor:
        return self.last(mint.tanh(self.hidden(mint.cat((first, second), 1))))


def network(n_classes: int) -> nn.Cell:
    return TwoInputs(n_classes)


def absolute_error() -> Callable[[Tensor, Tensor], np.ndarray]:
    """Return a metric in plain NumPy, |outputs - labels|."""
    return lambda outputs, labels: np.abs(outputs.asnumpy() - labels.asnumpy())


TOLD: list[tuple[str, dict[str, Any]]] = []
"""What a run's callback got: the name of the run's folder, and the record."""


def callback(out: Path) -> Callable[[dict[str, Any]], None]:
    return lambda record: TOLD.append((out.name, record))


class Masked(nn.Cell):
    """A loss that counts the labels above 0: their squared errors, and for a mean the sum and the count of these."""

    def __init__(self, reduction: str):
        super().__init__()
        self.is_mean = reduction == "mean"

    def construct(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        counted = labels > 0
        values = (outputs - labels) ** 2 * counted
        return (values.sum(), counted.sum()) if self.is_mean else (values, counted)


def pairs() -> Callable[[Tensor, Tensor], Tensor]:
    """Return a metric that wrongly broadcasts (n, 1) and (n,) to (n, n)."""
    return lambda outputs, labels: abs(outputs[:, :1] - labels[:, 0])


def broken_metric() -> Callable[[Tensor, Tensor], np.ndarray]:
    return lambda outputs, labels: outputs.asnumpy() @ labels.asnumpy()


def number() -> int:
    return 3


class AlwaysMean(nn.Cell):
    def __init__(self, reduction: str):
        super().__init__()

    def construct(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return ((outputs - labels) ** 2).mean()


class NeverMean(AlwaysMean):
    def construct(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs - labels) ** 2
