"""A small momentum step on the part of the gradient that the subspace can't express."""

import math
from typing import Protocol

import numpy as np
from mindspore import Tensor, ops

from dimred.search.projection import Subspace
from dimred.train_step.network_state import along
from dimred.train_step.options import check_number


class Residual(Protocol):
    """What moves the weights outside the subspace."""

    def move(
        self, point: Tensor, grad: Tensor, subspace_grad: np.ndarray, momentum: Tensor | None
    ) -> tuple[Tensor, Tensor | None, float]:
        """The point after the move, the new m, and the distance moved.

        Args:
            point: (M,), after the search.
            grad: g, (M,).
            subspace_grad: P g, (k,).
            momentum: m, (M,); None stands for 0.
        """


class NoResidual:
    """alpha = 0: the weights stay inside, and nothing is spent."""

    def move(
        self, point: Tensor, grad: Tensor, subspace_grad: np.ndarray, momentum: Tensor | None
    ) -> tuple[Tensor, Tensor | None, float]:
        """See ``Residual.move``."""
        return point, momentum, 0.0


class ResidualMomentum:
    """m <- gamma m + (g - P' g_k);  w <- w - alpha m   (mindspore.boost's dim_reduce)

    Args:
        gamma: momentum, 0 <= gamma < 1.
        alpha: step size, above 0.
        subspace: for P' g_k, one more pass over the basis.
    """

    def __init__(self, gamma: float, alpha: float, subspace: Subspace):
        self._gamma = gamma
        self._alpha = alpha
        self._subspace = subspace

    def move(
        self, point: Tensor, grad: Tensor, subspace_grad: np.ndarray, momentum: Tensor | None
    ) -> tuple[Tensor, Tensor | None, float]:
        """See ``Residual.move``."""
        outside = grad - self._subspace.back_project(subspace_grad)
        new = outside if momentum is None else along(outside, momentum, self._gamma)
        distance = self._alpha * math.sqrt(float(ops.matmul(new, new).asnumpy()))
        return along(point, new, -self._alpha), new, distance


def make_residual(gamma: float, alpha: float, subspace: Subspace) -> Residual:
    """The residual step with these options, or its identity where alpha is 0.

    Raises:
        ConfigError: an option outside its range.
    """
    check_number("gamma", gamma, at_least=0, below=1, usual="0.9 is usual")
    check_number("alpha", alpha, at_least=0, usual="0.001 is usual, 0 turns the residual step off")
    return NoResidual() if alpha == 0 else ResidualMomentum(gamma, alpha, subspace)
