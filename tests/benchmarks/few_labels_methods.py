"""What a network can be given from a few trusted images: a temperature, fine-tuning, a posterior over some directions.

The network is an MLP with one hidden layer, in NumPy, its weights one vector (M,) in the order of ``make_network``.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from mindspore import nn
from scipy.optimize import minimize

from dimred.data.digits import FIELD, N_CLASSES

PIXELS, HIDDEN = FIELD**2, 128
LAST_LAYER = slice(-N_CLASSES * (HIDDEN + 1), None)
TEMPERATURES = np.geomspace(0.25, 16, 73)
STRENGTHS, FOLDS, ITERATIONS = 10.0 ** np.arange(1, -5, -1), 5, 40  # of the L2 term; cross validation; L-BFGS
BURN_IN = 200


class Split(NamedTuple):
    """Images (n, PIXELS), their labels as given and the right ones, (n,), in the order of scans and variants."""

    images: np.ndarray
    labels: np.ndarray
    truth: np.ndarray

    def part(self, chosen: np.ndarray) -> "Split":
        """The images of these numbers, or where ``chosen`` is true."""
        return Split(*(values[chosen] for values in self))


def make_network() -> nn.Cell:
    """An MLP; it has no BatchNorm, so that weights are all there is."""
    return nn.SequentialCell(nn.Dense(PIXELS, HIDDEN), nn.ReLU(), nn.Dense(HIDDEN, N_CLASSES))


def unpack(vectors: np.ndarray) -> list[np.ndarray]:
    """W (.., HIDDEN, PIXELS), b (.., HIDDEN), V (.., N_CLASSES, HIDDEN), c (.., N_CLASSES) of weights (.., M)."""
    shapes = [(HIDDEN, PIXELS), (HIDDEN,), (N_CLASSES, HIDDEN), (N_CLASSES,)]
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    parts = np.split(vectors, ends[:-1], axis=-1)
    return [part.reshape(*vectors.shape[:-1], *shape) for part, shape in zip(parts, shapes, strict=True)]


def logits(vector: np.ndarray, images: np.ndarray) -> np.ndarray:
    """The network in NumPy: V max(W x + b, 0) + c, (n, N_CLASSES)."""
    weight, bias, last, last_bias = unpack(vector)
    return np.maximum(images @ weight.T + bias, 0) @ last.T + last_bias


class Subspace:
    """The same logits at w + D' z for many z: before the ReLU they are linear in z, and what does not change is kept.

    Args:
        start: w, (M,).
        directions: D, (k, M).
        images: (n, PIXELS).
    """

    def __init__(self, start: np.ndarray, directions: np.ndarray, images: np.ndarray) -> None:
        self._start, self._moves = unpack(start), unpack(directions)
        self._inside = images @ self._start[0].T + self._start[1]
        self._inside_moves = np.matmul(images, self._moves[0].swapaxes(1, 2)) + self._moves[1][:, None]

    def logits(self, z: np.ndarray) -> np.ndarray:
        """(n, N_CLASSES) at one point (k,)."""
        z = z.astype(np.float32)
        hidden = np.maximum(self._inside + np.tensordot(z, self._inside_moves, 1), 0)
        last, last_bias = (self._start[part] + np.tensordot(z, self._moves[part], 1) for part in (2, 3))
        return hidden @ last.T + last_bias


def softmax(found: np.ndarray) -> np.ndarray:
    """Probabilities of logits, (n, N_CLASSES)."""
    powers = np.exp(found - found.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def cross_entropy(found: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of each image's logits, (n,)."""
    shifted = found.astype(np.float64) - found.max(axis=1, keepdims=True)
    return np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]


def loss_and_gradient(vector: np.ndarray, part: Split, temperature: float) -> tuple[float, np.ndarray]:
    """Mean loss of the logits over the temperature, and its gradient (M,)."""
    weight, bias, last, last_bias = unpack(vector)
    inside = part.images @ weight.T + bias
    hidden = np.maximum(inside, 0)
    found = (hidden @ last.T + last_bias) / temperature
    error = softmax(found)
    error[np.arange(len(part.labels)), part.labels] -= 1
    error /= temperature * len(part.labels)
    back = (error @ last) * (inside > 0)
    parts = (back.T @ part.images, back.sum(axis=0), error.T @ hidden, error.sum(axis=0))
    return float(cross_entropy(found, part.labels).mean()), np.concatenate([values.ravel() for values in parts])


def fit_temperature(found: np.ndarray, labels: np.ndarray) -> float:
    """T with the lowest loss of logits / T (Guo et al., On calibration of modern neural networks, 2017)."""
    return float(min(TEMPERATURES, key=lambda temperature: cross_entropy(found / temperature, labels).mean()))


def fine_tune(start: np.ndarray, trusted: Split, temperature: float, free: slice) -> np.ndarray:
    """Minimise loss + strength / 2 |w - start|^2 over the weights ``free``; cross validation chooses the strength.

    The start itself is a candidate too, as that of infinite strength.
    """

    def path(part: Split) -> Iterator[np.ndarray]:
        """The minima, from the greatest strength to the least, each begun at the one before."""
        vector = start.astype(np.float64)

        def objective(moved: np.ndarray, strength: float) -> tuple[float, np.ndarray]:
            vector[free] = start[free] + moved
            loss, gradient = loss_and_gradient(vector, part, temperature)
            return loss + strength / 2 * float(moved @ moved), gradient[free] + strength * moved

        moved = np.zeros(len(vector[free]))
        for strength in STRENGTHS:
            moved = minimize(objective, moved, strength, "L-BFGS-B", jac=True, options={"maxiter": ITERATIONS}).x
            vector[free] = start[free] + moved
            yield vector.copy()

    fold = np.arange(len(trusted.labels)) % FOLDS
    held_out = np.zeros(len(STRENGTHS) + 1)  # the start comes last
    for number in range(FOLDS):
        part, rest = trusted.part(fold == number), trusted.part(fold != number)
        found = [logits(vector, part.images) for vector in (*path(rest), start)]
        held_out += [cross_entropy(one / temperature, part.labels).sum() for one in found]
    return [*path(trusted), start][int(held_out.argmin())]


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
