"""Gradient clipping by value and by global norm."""

from mindspore import Tensor, nn, ops


class Clipping(nn.Cell):
    """Clip by value, then by global norm.

    g <- min(max(g, -value), value);   g <- g min(1, norm / |g|), |g| over all parameters together

    (Pascanu et al., On the difficulty of training recurrent neural networks, 2013, algorithm 1, for the norm.
    ``ops.clip_by_global_norm`` does the second, but does not tell the norm.)

    Args:
        norm: longest global norm, above 0; None leaves the norm.
        value: largest entry in magnitude, above 0; None leaves the entries.

    Inputs:
        gradients: a tuple of float32 tensors.

    Outputs:
        the clipped gradients, and the global norm from before, () float32.
    """

    def __init__(self, norm: float | None = None, value: float | None = None):
        super().__init__(auto_prefix=False)
        self.norm = norm
        self.value = value

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        before = length = _global_norm(gradients)
        if self.value is not None:
            gradients = tuple([ops.clamp(gradient, -self.value, self.value) for gradient in gradients])
            if self.norm is not None:
                length = _global_norm(gradients)
        if self.norm is not None:
            factor = self.norm / ops.maximum(length, self.norm)
            gradients = tuple([gradient * factor for gradient in gradients])
        return gradients, before


def _global_norm(gradients: tuple[Tensor, ...]) -> Tensor:
    """Return |g| over all of them, () float32."""
    square = 0.0
    for gradient in gradients:
        square = square + ops.reduce_sum(gradient * gradient)
    return ops.sqrt(square)
