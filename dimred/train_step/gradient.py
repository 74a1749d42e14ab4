"""Loss and gradient of a batch."""

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from dimred.errors import ConfigError
from dimred.train_step.part import LossScale
from dimred.vectors.weights import Vectors


class MeanLoss(nn.Cell):
    """A cell that returns the mean loss of a batch: the network's result, or its sum divided by its count.

    Args:
        network: network and loss in one cell, which returns the mean loss of a batch, or (sum, count).

    Inputs:
        the network's inputs.

    Outputs:
        the mean loss, the same again as its total, and the weight 1, () float32 each; see ``WeightedLoss``.

    Raises:
        ConfigError: at the first call, the network returns neither one number nor a pair with an integer count.
    """

    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network
        self.one = Tensor(1.0, ms.float32)

    def construct(self, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        numbers = loss_numbers(self.network(*inputs))
        mean = numbers[0] if len(numbers) == 1 else numbers[0] / numbers[1]
        return mean, mean, self.one


def loss_numbers(loss: Any) -> list[Tensor]:
    """Return the mean loss, or its sum and its count, float32 each; refuse anything else, see ``MeanLoss``.

    Any other pair, such as a loss and an accuracy, must not be divided.
    """
    values = loss if isinstance(loss, (tuple, list)) else [loss]
    _check_kinds([(value.shape, value.dtype) if isinstance(value, Tensor) else None for value in values])
    return [value.astype(ms.float32) for value in values]


@ops.constexpr  # so that a graph calls it when it is compiled, before any step
def _check_kinds(kinds: list[Any]) -> None:
    are_numbers = all(kind is not None and kind[0] == () for kind in kinds)
    has_count = len(kinds) == 2 and are_numbers and kinds[1][1] in (mstype.int32, mstype.int64)
    if not (are_numbers and len(kinds) == 1) and not has_count:
        values = " and ".join("no tensor" if kind is None else f"{kind[1]} {kind[0]}" for kind in kinds)
        raise ConfigError(
            f"the network gives {values} as its loss; a step needs the mean over the batch, one tensor of the shape () "
            '(reduction="mean"), or the sum and the count, two tensors of that shape, the count int32 or int64'
        )


class BatchGradient(nn.Cell):
    """A cell that returns loss and gradient of a batch, each times the batch's weight, and that weight.

    Args:
        loss: ``MeanLoss`` of a network; or, if the batch is a part of a larger one and has a weight, ``WeightedLoss``.
        parameters: the parameters to differentiate by.
        loss_scale: scales the loss before its gradient is taken, and unscales the gradient; ``LossScale()`` for none.

    Outputs:
        the loss, () float32; a tuple of float32 gradients in the parameters' shapes; and the weight, () float32.
    """

    def __init__(self, loss: nn.Cell, parameters: Sequence[Parameter], loss_scale: LossScale):
        super().__init__(auto_prefix=False)
        self.network = loss.network
        # MindSpore visits all registered cells at every call: these two are visited below others anyway.
        object.__setattr__(self, "loss_scale", loss_scale)
        object.__setattr__(self, "loss", loss)
        self.gradient = ops.value_and_grad(
            _ScaledLoss(loss, loss_scale), None, ms.ParameterTuple(parameters), has_aux=True
        )

    def construct(self, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        (_, total, weight), gradients = self.gradient(*inputs)
        # A graph that touches each gradient, even for a cast that does nothing, takes 3.5 times their size in memory.
        return total, self.loss_scale.unscaled(gradients, weight), weight


class _ScaledLoss(nn.Cell):
    """A cell that returns the loss to differentiate, then the loss f times the weight, and the weight."""

    def __init__(self, loss: nn.Cell, loss_scale: LossScale):
        super().__init__(auto_prefix=False)
        self.loss = loss
        self.loss_scale = loss_scale

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, total, weight = self.loss(*inputs)
        return self.loss_scale.scaled(mean, total), total, weight


class VectorGradient:
    """Computes the loss of a batch that is taken whole, and its gradient as one vector.

    Args:
        gradient: computes loss and gradient.
        vectors: vectors of the parameters that ``gradient`` differentiates by.
        draw_dropout_masks: called before each forward pass, with the number of the micro-batch, from 0.
    """

    def __init__(
        self,
        gradient: BatchGradient,
        vectors: Vectors,
        draw_dropout_masks: Callable[[int], object] = lambda number: None,
    ):
        self._loss, self._gradient = gradient.loss, gradient
        self._vectors, self._draw_dropout_masks = vectors, draw_dropout_masks

    def loss(self, inputs: Sequence[Tensor], number: int = 0) -> tuple[Tensor, Tensor]:
        """Return the loss times the weight, and the weight, () float32 each.

        This moves BatchNorm's statistics; the caller restores them.

        Args:
            inputs: the network's inputs; their first dimension counts the rows.
            number: number of the micro-batch.
        """
        self._draw_dropout_masks(number)
        _, loss, weight = self._loss(*inputs)
        return loss, weight

    def loss_and_gradient(self, inputs: Sequence[Tensor], number: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss and gradient times the weight, () and (M,) float32, and the weight, () float32; see ``loss``."""
        self._draw_dropout_masks(number)
        loss, gradients, weight = self._gradient(*inputs)
        return loss, self._vectors.flatten(gradients), weight
