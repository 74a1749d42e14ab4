"""A small network, and the same function with its gradient written by hand in NumPy."""

from collections.abc import Callable

import numpy as np
from mindspore import Tensor, nn, ops

Function = Callable[[np.ndarray, tuple[np.ndarray, ...]], tuple[float, np.ndarray]]
"""A function of weights and batch that returns the loss and its gradient with respect to the weights."""


def orthonormal_rows(k: int, n_weights: int, seed: int = 0) -> np.ndarray:
    """Draw k orthonormal rows, float32."""
    columns, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((n_weights, k)))
    return np.ascontiguousarray(columns.T.astype(np.float32))


def weight_vector(network: nn.Cell) -> np.ndarray:
    """Return the trainable weights as one vector."""
    return np.concatenate([p.asnumpy().ravel() for p in network.trainable_params()])


def set_weights(network: nn.Cell, vector: np.ndarray) -> None:
    """Set the trainable weights from one vector."""
    first = 0
    for parameter in network.trainable_params():
        piece = vector[first : first + parameter.size].reshape(parameter.shape).astype(np.float32)
        parameter.set_data(Tensor(piece))
        first += parameter.size


class TanhMLP(nn.Cell):
    """The mean squared error of tanh(x W1' + b1) W2' + b2."""

    def __init__(self, n_in: int = 3, n_hidden: int = 5, n_out: int = 2, seed: int = 3):
        super().__init__()
        self.hidden = nn.Dense(n_in, n_hidden)
        self.out = nn.Dense(n_hidden, n_out)
        rng = np.random.default_rng(seed)
        set_weights(self, rng.standard_normal(sum(p.size for p in self.trainable_params())) * 0.5)

    def construct(self, x: Tensor, target: Tensor) -> Tensor:
        """Return a batch's loss."""
        error = self.out(ops.tanh(self.hidden(x))) - target
        return (error * error).mean()


def mlp_function(n_in: int = 3, n_hidden: int = 5, n_out: int = 2) -> Function:
    """Make ``TanhMLP`` by hand, as a function (w, batch) -> loss and gradient; w holds W1, b1, W2, b2 in a row."""
    shapes = [(n_hidden, n_in), (n_hidden,), (n_out, n_hidden), (n_out,)]

    def function(w: np.ndarray, batch: tuple[np.ndarray, ...]) -> tuple[float, np.ndarray]:
        x, target = batch
        parts = []
        first = 0
        for shape in shapes:
            parts.append(w[first : first + int(np.prod(shape))].reshape(shape))
            first += int(np.prod(shape))
        w1, b1, w2, b2 = parts
        hidden = np.tanh(x @ w1.T + b1)
        error = hidden @ w2.T + b2 - target
        out_grad = 2.0 * error / error.size
        hidden_grad = (out_grad @ w2) * (1.0 - hidden**2)
        grads = [hidden_grad.T @ x, hidden_grad.sum(0), out_grad.T @ hidden, out_grad.sum(0)]
        return float((error**2).mean()), np.concatenate([grad.ravel() for grad in grads])

    return function
