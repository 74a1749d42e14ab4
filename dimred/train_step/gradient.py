"""A batch's loss and gradient."""

from collections.abc import Callable, Sequence

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from dimred.train_step.mean_loss import MeanLoss
from dimred.train_step.part import LossScale
from dimred.train_step.weighted_loss import WeightedLoss
from dimred.vectors.weights import Vectors
from dimred.workarounds.visited_cells import VisitedOnce


class BatchGradient(VisitedOnce, nn.Cell):
    """A cell that returns a batch's loss and gradient, each multiplied by the batch's weight, and that weight.

    Args:
        network: network and loss in one cell.
        parameters: the parameters to differentiate with respect to.
        loss_scale: scales the loss before its gradient is taken, and unscales the gradient; ``LossScale()`` for none.
        weighs: whether a batch is part of a larger one and so has a weight (see ``WeightedLoss``); otherwise it is 1.

    Attributes:
        loss: the network's ``WeightedLoss`` or ``MeanLoss``.

    Outputs:
        the loss, () float32; a tuple of float32 gradients in the parameters' shapes; and the weight, () float32.
    """

    def __init__(self, network: nn.Cell, parameters: Sequence[Parameter], loss_scale: LossScale, weighs: bool):
        super().__init__(auto_prefix=False)
        self.loss: nn.Cell = MeanLoss(network)
        if weighs:
            self.loss = WeightedLoss(network)
        self.loss_scale = loss_scale
        scaled_loss = _ScaledLoss(self.loss, loss_scale)
        self.gradient = ops.value_and_grad(scaled_loss, None, ms.ParameterTuple(parameters), has_aux=True)

    def construct(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        (_, total, weight), gradients = self.gradient(*inputs)
        # If a graph touches each gradient, even for a cast that does nothing, it takes 3.5 times their size in memory.
        return total, self.loss_scale.unscaled(gradients, weight), weight


class _ScaledLoss(nn.Cell):
    """A cell that returns three numbers: the loss to differentiate; the loss f times the weight; and the weight."""

    def __init__(self, loss: nn.Cell, loss_scale: LossScale):
        super().__init__(auto_prefix=False)
        self.loss = loss
        self.loss_scale = loss_scale

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, total, weight = self.loss(*inputs)
        return self.loss_scale.scaled(mean, total), total, weight


class VectorGradient:
    """Computes the loss of a batch taken whole, and its gradient as one vector.

    Args:
        gradient: computes loss and gradient.
        vectors: treats the parameters of ``gradient`` as one vector.
        draw_dropout_masks: called before each forward pass with the micro-batch's number, from 0.
    """

    def __init__(
        self,
        gradient: BatchGradient,
        vectors: Vectors,
        draw_dropout_masks: Callable[[int], object] = lambda number: None,
    ):
        self._loss = gradient.loss
        self._gradient = gradient
        self._vectors = vectors
        self._draw_dropout_masks = draw_dropout_masks

    def loss(self, inputs: Sequence[Tensor], number: int = 0) -> tuple[Tensor, Tensor]:
        """Return the loss times the weight, and the weight, () float32 each.

        This moves BatchNorm's statistics; the caller restores them.

        Args:
            inputs: the network's inputs; their first dimension counts the rows.
            number: the micro-batch's number.
        """
        self._draw_dropout_masks(number)
        _, loss, weight = self._loss(*inputs)
        return loss, weight

    def loss_and_gradient(self, inputs: Sequence[Tensor], number: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss and gradient times the weight, () and (M,) float32, and the weight, () float32; see ``loss``."""
        self._draw_dropout_masks(number)
        loss, gradients, weight = self._gradient(*inputs)
        return loss, self._vectors.flatten(gradients), weight
