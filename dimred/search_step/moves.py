"""The moves of a step: along a line in the subspace, and then outside the subspace.

The line search does not see the second move: Armijo's inequality holds at w + t d, and this move goes on from there,
which can raise the loss. Unless it is off, it is made in every step that is not skipped, whether a trial was accepted
or not.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from dimred.errors import ConfigError
from dimred.train_step.optimizers import check_optimizer
from dimred.vectors.weights import Unflatten, Vectors


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
        """Return whether a weight differs from that at t = 0, by more than about 1e-22."""
        return self._weights.squared_norm(self._weights.read() - self._start) > 0


class MoveOutside(Protocol):
    """A move outside the subspace; ``SearchStep`` takes any object that has this attribute and this method.

    Attributes:
        optimizer: the optimizer that makes it; None without one. With one, each step is a training step, whatever the
            line search finds.
    """

    optimizer: nn.Optimizer | None

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

    optimizer = None

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
            The new m, which the search remembers, and the distance moved.
        """
        before = [] if momentum is None else [(self._gamma, momentum)]
        new, square = weights.add(-self._alpha, (1.0, grad), (-1.0, inside), *before)
        return new, self._alpha * math.sqrt(square)


class OptimizerOutside:
    """The step of an ordinary optimizer from w + t d, with g - P' g_k as the gradient.

    The optimizer's state is in its own parameters, so a skipped step leaves it alone.

    Args:
        optimizer: an optimizer of the trainable parameters, with its own schedule and decay groups.
        trainable: the trainable parameters, in the order of the weight vector.

    Raises:
        ConfigError: the optimizer's parameters are not exactly the trainable ones, or not float32.
    """

    def __init__(self, optimizer: nn.Optimizer, trainable: Sequence[Parameter]):
        check_optimizer(optimizer, trainable)
        if len(optimizer.parameters) != len(trainable):
            raise ConfigError(
                f"optimizer has {len(optimizer.parameters)} parameters, but the network has {len(trainable)} trainable "
                "ones; make it from network.trainable_params()"
            )
        self.optimizer = optimizer
        self._update = _OptimizerOnVector(optimizer, trainable)

    def move(self, weights: Vectors, grad: Tensor, inside: Tensor, momentum: Tensor | None) -> tuple[None, float]:
        """Move the weights; arguments are as for ``ResidualMomentum.move``, of which ``momentum`` is not used.

        Returns:
            None, because the optimizer keeps its own momenta; and the distance moved.
        """
        before = weights.read()
        self._update(grad - inside)
        return None, math.sqrt(weights.squared_norm(weights.read() - before))


class UnitRate(nn.Cell):
    """A cell that stands where callbacks look for a step's optimizer, if the search applies its steps by itself.

    It has an optimizer's attributes as callbacks read them: the rate 1, no parameters, and the number of steps.

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


class _OptimizerOnVector(nn.Cell):
    """A cell that makes the optimizer's step for a gradient (M,)."""

    def __init__(self, optimizer: nn.Optimizer, trainable: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.unflatten = Unflatten(trainable, optimizer.parameters)

    def construct(self, vector: Tensor) -> bool:
        return ops.depend(True, self.optimizer(self.unflatten(vector)))
