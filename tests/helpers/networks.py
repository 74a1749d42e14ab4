"""Small real networks for the search, some with loss and gradient written by hand in NumPy."""

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.proof.small_network import (  # noqa: F401
    TanhMLP,
    mlp_function,
    orthonormal_rows,
    set_weights,
    weight_vector,
)
from dimred.search_step.line_search import LineFunction, LineSearchResult
from dimred.subspace.basis import SubspaceBasis as PlainBasis


def basis_for(network: nn.Cell, k: int = 4, seed: int = 0) -> PlainBasis:
    return PlainBasis(orthonormal_rows(k, sum(p.size for p in network.trainable_params()), seed))


class Shortened:
    """A rule whose directions are made no longer than ``longest``, as the twin's ``max_step`` does."""

    def __init__(self, rule: Any, longest: float):
        self.rule, self.longest = rule, longest
        self.initial, self.follow = rule.initial, rule.follow

    def propose(self, state: Any, subspace_grad: np.ndarray) -> Any:
        found = self.rule.propose(state, subspace_grad)
        factor = min(1.0, self.longest / float(np.linalg.norm(found.direction)))
        return found._replace(direction=factor * found.direction, slope=factor * found.slope)


class RejectAll:
    """A line search that tries t = 1, 1/2, 1/4, ... and accepts none of them."""

    def __init__(self, n_trials: int):
        self.n_trials = n_trials

    def search(self, line: LineFunction) -> LineSearchResult:
        for trial in range(self.n_trials):
            line.loss(0.5**trial)
        return LineSearchResult(False, 0.0, line.loss(0.0))


def state_bytes(network: nn.Cell, trainable: bool | None = None) -> dict[str, bytes]:
    """Return every parameter's bytes, or only of those that train, or only of the others."""
    chosen = [p for p in network.get_parameters() if trainable is None or p.requires_grad == trainable]
    return {p.name: p.asnumpy().tobytes() for p in chosen}


class Quadratic(nn.Cell):
    """f(w; b) = w'A w / 2 + b'w, the weights in two parameters of different shapes."""

    def __init__(self, matrix: np.ndarray, start: np.ndarray):
        super().__init__()
        self.matrix = Tensor(matrix.astype(np.float32))
        self.first = Parameter(Tensor(start[:6].reshape(2, 3).astype(np.float32)), name="first")
        self.second = Parameter(Tensor(start[6:].astype(np.float32)), name="second")

    def construct(self, linear):
        w = ops.concat((self.first.reshape(-1), self.second))
        return 0.5 * (w * ops.matmul(self.matrix, w)).sum() + (linear * w).sum()


def quadratic_matrix(n: int, condition: float, seed: int = 1) -> np.ndarray:
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))
    return (q * np.geomspace(2.0 / condition, 2.0, n)) @ q.T


def quadratic_function(matrix: np.ndarray):
    def function(w, batch):
        (linear,) = batch
        return 0.5 * w @ matrix @ w + linear @ w, matrix @ w + linear

    return function


class BatchNormNet(nn.Cell):
    """Convolution, BatchNorm, dense, cross entropy; one frozen parameter and one counter that each forward raises."""

    def __init__(self, seed: int = 5):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, has_bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.dense = nn.Dense(4, 3)
        self.loss = nn.CrossEntropyLoss()
        self.forwards = Parameter(Tensor(0, ms.int32), name="forwards", requires_grad=False)
        rng = np.random.default_rng(seed)
        set_weights(self, rng.standard_normal(sum(p.size for p in self.trainable_params())) * 0.3)

    def construct(self, x, labels):
        self.forwards += 1
        return self.loss(self.dense(ops.relu(self.norm(self.conv(x))).mean((2, 3))), labels)


def image_batch(seed: int, n: int = 8) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((n, 1, 6, 6)).astype(np.float32)
    return Tensor(images), Tensor(rng.integers(0, 3, n).astype(np.int32))


class DropoutNet(nn.Cell):
    """A network with dropout: for the same weights and input, its loss differs only by the masks that are drawn."""

    def __init__(self):
        super().__init__()
        weights = Tensor(np.linspace(-1, 1, 50 * 30).reshape(50, 30).astype(np.float32))
        self.dense = nn.Dense(30, 50, weight_init=weights, bias_init="zeros")
        self.dropout = nn.Dropout(p=0.5)
        self.target = Tensor(np.linspace(-1, 1, 50).astype(np.float32))

    def construct(self, x):
        error = self.dropout(self.dense(x)) - self.target
        return (error * error).mean()
