"""Gradient clipping by global norm."""

from mindspore import Tensor, nn, ops

_each = ops.HyperMap()  # a graph compiles it much faster than a loop


class Clipping(nn.Cell):
    """A cell that clips the gradient: g <- g min(1, norm / |g|), with |g| over all parameters together.

    (Pascanu et al., On the difficulty of training recurrent neural networks, 2013, algorithm 1.
    ``ops.clip_by_global_norm`` does the same, but does not return the norm.)

    Args:
        norm: largest global norm, above 0.

    Inputs:
        gradients: a tuple of float32 tensors.

    Outputs:
        the clipped gradients, and the global norm before clipping, () float32.
    """

    def __init__(self, norm: float):
        super().__init__(auto_prefix=False)
        self.norm = norm

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        length = ops.sqrt(ops.addn(_each(_square, gradients)))
        factor = self.norm / ops.maximum(length, self.norm)
        return _each(ops.partial(ops.mul, factor), gradients), length


def _square(gradient: Tensor) -> Tensor:
    return ops.reduce_sum(gradient * gradient)
