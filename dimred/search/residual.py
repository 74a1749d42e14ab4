"""A small momentum step on the part of the gradient that the subspace can't express."""

from mindspore import Tensor, nn


class ResidualMomentum(nn.Cell):
    """m <- gamma m + (g - P' g_k)

    Args:
        gamma: momentum, 0 <= gamma < 1.

    Shapes:
        momentum m (M,), grad g (M,), inside P' g_k (M,) -> new momentum (M,).
    """

    def __init__(self, gamma: float):
        super().__init__(auto_prefix=False)
        self.gamma = gamma

    def construct(self, momentum: Tensor, grad: Tensor, inside: Tensor) -> Tensor:
        return self.gamma * momentum + (grad - inside)
