"""The moves that a step makes: along a line in the subspace, then outside the subspace.

The line search does not know about the second move. Armijo's inequality holds at w + t d; the second move starts there
and can raise the loss. Unless it is off, every step that is not skipped makes it, whether or not a trial was accepted.
"""

import math
from collections.abc import Callable
from typing import Protocol

import mindspore as ms
from mindspore import Parameter, Tensor, nn

from dimred.vectors.weights import Vectors


class Line:
    """The line w + t d, with w the weights when the object is made.

    Args:
        weights: the weights as a vector.
        direction: d, (M,) float32.
    """

    def __init__(self, weights: Vectors, direction: Tensor):
        self._weights = weights
        self._direction = direction
        self._step_size = 0.0
        self._start = weights.read()

    def move_to(self, step_size: float) -> None:
        """Set the weights to w + t d, unless they are there already; t = 0 restores w, bit for bit."""
        if step_size == self._step_size:
            return
        self._step_size = math.nan  # an interrupted move leaves the weights partly set
        step = [(step_size, self._direction)] if step_size else []
        self._weights.put((1.0, self._start), *step)
        self._step_size = step_size

    def has_moved(self) -> bool:
        """Return whether any weight differs from its value at t = 0 by more than about 1e-22."""
        return self._weights.squared_norm(self._weights.read() - self._start) > 0


class MoveOutside(Protocol):
    """A move outside the subspace; ``SearchStep`` takes any object with this method."""

    def move(
        self, weights: Vectors, grad: Tensor, inside: Tensor, momentum: Tensor | None
    ) -> tuple[Tensor | None, float]:
        """Move the weights; arguments and result are as for ``ResidualMomentum.move``."""


class ResidualMomentum:
    """The published step outside the subspace: m <- gamma m + (g - P' g_k);  w <- w - alpha m.

    Source: ``dim_reduce`` of ``mindspore.boost``.

    Args:
        gamma: momentum, 0 <= gamma < 1.
        alpha: step size, above 0.
    """

    def __init__(self, gamma: float, alpha: float):
        self._gamma = gamma
        self._alpha = alpha

    def move(self, weights: Vectors, grad: Tensor, inside: Tensor, momentum: Tensor | None) -> tuple[Tensor, float]:
        """Move the weights.

        Args:
            weights: the weights after the line search.
            grad: g, (M,).
            inside: P' g_k, (M,).
            momentum: m, (M,); None stands for 0.

        Returns:
            The new m, for the next call, and the distance moved.
        """
        before = [] if momentum is None else [(self._gamma, momentum)]
        new, square = weights.add(-self._alpha, (1.0, grad), (-1.0, inside), *before)
        return new, self._alpha * math.sqrt(square)


class UnitRate(nn.Cell):
    """A stand-in for the optimizer that callbacks look for, because a search has none.

    It has the attributes that callbacks read: the rate 1, no parameters, and the number of steps.

    Args:
        n_steps: returns the number of steps so far.
    """

    def __init__(self, n_steps: Callable[[], int]):
        super().__init__(auto_prefix=False)
        self.parameters: tuple[Parameter, ...] = ()
        self.dynamic_lr = False
        self.learning_rate = Tensor(1.0, ms.float32)
        self._n_steps = n_steps

    @property
    def global_step(self) -> Tensor:
        """Return the number of steps so far, (1,) int32."""
        return Tensor([self._n_steps()], ms.int32)
