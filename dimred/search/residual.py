"""A small momentum step on the part of the gradient that the subspace can't express."""

import math
from typing import Protocol

from mindspore import Tensor

from dimred.errors import check_number
from dimred.vectors.weight_vector import Weights


class Residual(Protocol):
    """What moves the weights outside the subspace.

    Attributes:
        wants_inside: whether ``move`` is to be given P' g_k, which takes a pass over the basis.
    """

    wants_inside: bool

    def move(
        self, weights: Weights, grad: Tensor, inside: Tensor | None, momentum: Tensor | None
    ) -> tuple[Tensor | None, float]:
        """Move the weights; the new m, and the distance moved.

        Args:
            weights: after the search.
            grad: g, (M,).
            inside: P' g_k, (M,), where it is wanted.
            momentum: m, (M,); None stands for 0.
        """


class NoResidual:
    """alpha = 0: the weights stay inside, and nothing is spent."""

    wants_inside = False

    def move(
        self, weights: Weights, grad: Tensor, inside: Tensor | None, momentum: Tensor | None
    ) -> tuple[Tensor | None, float]:
        """See ``Residual.move``."""
        return momentum, 0.0


class ResidualMomentum:
    """m <- gamma m + (g - P' g_k);  w <- w - alpha m   (mindspore.boost's dim_reduce)

    Args:
        gamma: momentum, 0 <= gamma < 1.
        alpha: step size, above 0.
    """

    wants_inside = True

    def __init__(self, gamma: float, alpha: float):
        self._gamma = gamma
        self._alpha = alpha

    def move(
        self, weights: Weights, grad: Tensor, inside: Tensor | None, momentum: Tensor | None
    ) -> tuple[Tensor | None, float]:
        """See ``Residual.move``."""
        before = [] if momentum is None else [(self._gamma, momentum)]
        new, square = weights.add(-self._alpha, (1.0, grad), (-1.0, inside), *before)
        return new, self._alpha * math.sqrt(square)


def make_residual(gamma: float, alpha: float) -> Residual:
    """The residual step with these options, or its identity where alpha is 0.

    Raises:
        ConfigError: an option outside its range.
    """
    check_number("gamma", gamma, at_least=0, below=1, usual="0.9 is usual")
    check_number("alpha", alpha, at_least=0, usual="0.001 is usual, 0 turns the residual step off")
    return NoResidual() if alpha == 0 else ResidualMomentum(gamma, alpha)
