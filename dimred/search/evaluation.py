"""The questions the search puts to the network: the loss of a batch, and the loss with its gradient."""

from collections.abc import Sequence
from typing import NamedTuple

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from dimred.search.network_state import gather


class Evaluation(NamedTuple):
    """A batch's loss and gradient at the weights as they stand.

    Attributes:
        loss: f(w; B), Tensor () float32.
        grad: g, Tensor (M,) float32.
        grad_square: |g|^2, Tensor () float32.
    """

    loss: Tensor
    grad: Tensor
    grad_square: Tensor


class Objective:
    """Loss and gradient of one batch, at the weights as they stand.

    The seam for micro-batches and ranks: both answers are means over the whole batch, so whoever cuts it into pieces
    averages here, the gradient *and* both losses in the same way, and the search compares like with like.

    Args:
        network: network and loss in one cell; returns the scalar mean loss of a batch.
        trainable: the parameters, in the order of the weight vector.
    """

    def __init__(self, network: nn.Cell, trainable: Sequence[Parameter]):
        self._loss = _Loss(network)
        self._loss_and_gradient = _LossAndGradient(network, trainable)

    def loss(self, inputs: Sequence[Tensor]) -> float:
        """f(w; B)."""
        return float(self._loss(*inputs).asnumpy())

    def gradient(self, inputs: Sequence[Tensor]) -> Evaluation:
        """f(w; B) and g."""
        return Evaluation(*self._loss_and_gradient(*inputs))


class _Loss(nn.Cell):
    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, *inputs: Tensor) -> Tensor:
        return self.network(*inputs).astype(ms.float32)


class _LossAndGradient(nn.Cell):
    def __init__(self, network: nn.Cell, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.network = network
        self.weights = ms.ParameterTuple(parameters)
        self.gradient = ops.value_and_grad(network, None, self.weights)

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss, gradients = self.gradient(*inputs)
        vector = gather(gradients)
        return loss.astype(ms.float32), vector, ops.reduce_sum(vector * vector)
