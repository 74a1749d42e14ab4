"""TrainStep: the order of one ordinary training step."""

from typing import NamedTuple

from mindspore import Tensor, nn, ops


class StepResult(NamedTuple):
    """What a training step returns.

    Attributes:
        loss: () float32, f(w; B) before the update.
    """

    loss: Tensor


class TrainStep(nn.Cell):
    """One training step: loss and gradient, then the optimizer's update.

    Usable as a function, or handed to ``mindspore.train.Model``.

    Args:
        network: network and loss in one cell; returns the scalar mean loss of a batch.
        optimizer: over the network's trainable parameters.

    Inputs:
        the inputs of ``network``.

    Outputs:
        StepResult; its first field is the loss.
    """

    def __init__(self, network: nn.Cell, optimizer: nn.Optimizer):
        super().__init__(auto_prefix=False)
        self.network = network
        self.optimizer = optimizer
        self.gradient = ops.value_and_grad(network, None, optimizer.parameters)

    def construct(self, *inputs: Tensor) -> StepResult:
        loss, gradients = self.gradient(*inputs)
        return StepResult(ops.depend(loss, self.optimizer(gradients)))
