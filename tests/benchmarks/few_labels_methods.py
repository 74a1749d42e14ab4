"""What a network can be given from a few trusted images: a temperature, fine-tuning, a posterior over some directions.

The network is a small CNN without BatchNorm, in NumPy, its weights one vector (M,) in the order of ``make_network``.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from mindspore import nn
from scipy.optimize import minimize

from dimred.data.digits import N_CLASSES

CHANNELS, KERNEL, STRIDE, POOLED, HIDDEN = 16, 5, 2, 3, 128
SHAPES = [
    (CHANNELS, KERNEL**2), (CHANNELS,), (HIDDEN, CHANNELS * POOLED**2), (HIDDEN,), (N_CLASSES, HIDDEN), (N_CLASSES,)
]  # fmt: skip
LAST_LAYER = slice(-N_CLASSES * (HIDDEN + 1), None)
TEMPERATURES = np.geomspace(0.25, 16, 73)
STRENGTHS, FOLDS, ITERATIONS = (1.0, 0.1, 0.01, 1e-3, 1e-4), 4, 30  # of the L2 term; cross validation; L-BFGS
BURN_IN = 100


class Split(NamedTuple):
    """Images (n, 1, FIELD, FIELD), their labels as given and the right ones, (n,)."""

    images: np.ndarray
    labels: np.ndarray
    truth: np.ndarray

    def part(self, chosen: np.ndarray) -> "Split":
        """The images of these numbers, or where ``chosen`` is true."""
        return Split(*(values[chosen] for values in self))

    def patches(self) -> np.ndarray:
        """What the convolution sees, (n, 6, 6, 25)."""
        seen = np.lib.stride_tricks.sliding_window_view(self.images[:, 0], (KERNEL, KERNEL), (1, 2))
        return np.ascontiguousarray(seen[:, ::STRIDE, ::STRIDE]).reshape(-1, 2 * POOLED, 2 * POOLED, KERNEL**2)


def make_network() -> nn.Cell:
    """It has no BatchNorm, so that the weights are all there is."""
    return nn.SequentialCell(
        nn.Conv2d(1, CHANNELS, KERNEL, STRIDE, pad_mode="valid", has_bias=True),
        nn.MaxPool2d(2, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dense(CHANNELS * POOLED**2, HIDDEN),
        nn.ReLU(),
        nn.Dense(HIDDEN, N_CLASSES),
    )


class Layers(NamedTuple):
    """What a forward pass leaves.

    Attributes:
        weights: by layer, of ``SHAPES``.
        inside: of the convolution, (n, 3, 2, 3, 2, CHANNELS).
        pooled: (n, 3, 1, 3, 1, CHANNELS), before the ReLU.
        features: (n, 9 CHANNELS), as the hidden layer sees them.
        hidden: (n, HIDDEN).
        logits: (n, N_CLASSES).
    """

    weights: list[np.ndarray]
    inside: np.ndarray
    pooled: np.ndarray
    features: np.ndarray
    hidden: np.ndarray
    logits: np.ndarray


def forward(vector: np.ndarray, patches: np.ndarray) -> Layers:
    """The network in NumPy."""
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])[:-1]
    weights = [part.reshape(shape) for part, shape in zip(np.split(vector, ends), SHAPES, strict=True)]
    kernel, kernel_bias, middle, middle_bias, last, last_bias = weights
    inside = (patches.reshape(-1, KERNEL**2) @ kernel.T + kernel_bias).reshape(-1, POOLED, 2, POOLED, 2, CHANNELS)
    pooled = inside.max(axis=(2, 4), keepdims=True)
    features = np.maximum(pooled[:, :, 0, :, 0], 0).transpose(0, 3, 1, 2).reshape(len(patches), -1)
    hidden = np.maximum(features @ middle.T + middle_bias, 0)
    return Layers(weights, inside, pooled, features, hidden, hidden @ last.T + last_bias)


def loss_and_gradient(
    vector: np.ndarray, patches: np.ndarray, labels: np.ndarray, temperature: float
) -> tuple[float, np.ndarray]:
    """Mean loss of the logits over the temperature, and its gradient (M,)."""
    layers = forward(vector, patches)
    _, _, middle, _, last, _ = layers.weights
    error = softmax(layers.logits / temperature)
    error[np.arange(len(labels)), labels] -= 1
    error /= temperature * len(labels)
    back = (error @ last) * (layers.hidden > 0)
    pooled = (back @ middle).reshape(-1, CHANNELS, POOLED, POOLED).transpose(0, 2, 3, 1)
    pooled = pooled[:, :, None, :, None] * ((layers.inside == layers.pooled) & (layers.pooled > 0))
    kernels = pooled.reshape(-1, CHANNELS)
    parts = (
        kernels.T @ patches.reshape(-1, KERNEL**2), kernels.sum(axis=0),
        back.T @ layers.features, back.sum(axis=0),
        error.T @ layers.hidden, error.sum(axis=0),
    )  # fmt: skip
    loss = cross_entropy(layers.logits / temperature, labels).mean()
    return float(loss), np.concatenate([values.ravel() for values in parts])


def softmax(found: np.ndarray) -> np.ndarray:
    """Probabilities of logits, (n, N_CLASSES)."""
    powers = np.exp(found - found.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def cross_entropy(found: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of each image's logits, (n,)."""
    shifted = found.astype(np.float64) - found.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]


def fit_temperature(found: np.ndarray, labels: np.ndarray) -> float:
    """T with the lowest loss of logits / T (Guo et al., On calibration of modern neural networks, 2017)."""
    return float(min(TEMPERATURES, key=lambda temperature: cross_entropy(found / temperature, labels).mean()))


def fine_tune(
    start: np.ndarray, patches: np.ndarray, labels: np.ndarray, temperature: float, free: slice
) -> np.ndarray:
    """Minimise loss + strength / 2 |w - start|^2 over the weights ``free``; cross validation chooses the strength.

    The start itself is a candidate too, as that of infinite strength.
    """

    def path(rows: np.ndarray) -> Iterator[np.ndarray]:
        """The minima, from the greatest strength to the least, each begun at the one before."""
        vector = start.astype(np.float32)

        def objective(moved: np.ndarray, strength: float) -> tuple[float, np.ndarray]:
            vector[free] = start[free] + moved
            loss, gradient = loss_and_gradient(vector, patches[rows], labels[rows], temperature)
            return loss + strength / 2 * float(moved @ moved), gradient[free] + strength * moved

        moved = np.zeros(len(vector[free]))
        for strength in STRENGTHS:
            moved = minimize(objective, moved, strength, "L-BFGS-B", jac=True, options={"maxiter": ITERATIONS}).x
            vector[free] = start[free] + moved
            yield vector.copy()

    fold = np.arange(len(labels)) % FOLDS
    held_out = np.zeros(len(STRENGTHS) + 1)  # the start comes last
    for number in range(FOLDS):
        rows = fold == number
        logits = [forward(vector, patches[rows]).logits for vector in (*path(~rows), start)]
        held_out += [cross_entropy(one / temperature, labels[rows]).sum() for one in logits]
    return [*path(fold >= 0), start][int(held_out.argmin())]


def elliptical_slice(
    log_likelihood: Callable[[np.ndarray], float], point: np.ndarray, reached: float, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """One transition that leaves N(0, I) times the likelihood as it is (Murray, Adams & MacKay, 2010, figure 2).

    Args:
        log_likelihood: of a point (k,).
        point: where the chain is, (k,).
        reached: its log-likelihood.

    Returns:
        The next point and its log-likelihood.
    """
    ellipse = rng.standard_normal(point.shape)
    threshold = reached + np.log(rng.random())
    angle = rng.uniform(0, 2 * np.pi)
    low, high = angle - 2 * np.pi, angle
    while True:
        proposal = point * np.cos(angle) + ellipse * np.sin(angle)
        value = log_likelihood(proposal)
        if value > threshold:
            return proposal, value
        low, high = (angle, high) if angle < 0 else (low, angle)
        angle = rng.uniform(low, high)


def sample(log_likelihood: Callable[[np.ndarray], float], k: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """A chain (n, k) from z = 0, without its first ``BURN_IN`` points."""
    point, reached = np.zeros(k), log_likelihood(np.zeros(k))
    chain = np.empty((BURN_IN + n, k))
    for number in range(len(chain)):
        point, reached = elliptical_slice(log_likelihood, point, reached, rng)
        chain[number] = point
    return chain[BURN_IN:]
