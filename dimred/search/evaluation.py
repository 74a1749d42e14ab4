"""The questions the search puts to the network: the loss of a batch, and its gradient."""

from collections.abc import Sequence

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from dimred.search.network_state import gather


class Loss(nn.Cell):
    """inputs -> f(w; B), () float32."""

    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, *inputs: Tensor) -> Tensor:
        return self.network(*inputs).astype(ms.float32)


class LossAndGradient(nn.Cell):
    """inputs -> f(w; B), () float32, its gradient g, (M,) float32, and |g|^2, () float32."""

    def __init__(self, network: nn.Cell, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.network = network
        self.weights = ms.ParameterTuple(parameters)
        self.gradient = ops.value_and_grad(network, None, self.weights)

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss, gradients = self.gradient(*inputs)
        vector = gather(gradients)
        return loss.astype(ms.float32), vector, ops.reduce_sum(vector * vector)
