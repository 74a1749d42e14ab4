"""The moves of a step: along a line in the subspace, and then outside the subspace.

The line search does not see the second move: Armijo's inequality holds at w + t d, and this move goes on from there,
which can raise the loss. Unless it is off, it is made in every step that is not skipped, whether a trial was accepted
or not.
"""

import math
from collections.abc import Sequence

from mindspore import Parameter, Tensor, nn, ops

from dimred.errors import ConfigError
from dimred.train_step.optimizers import check_optimizer
from dimred.vectors.weights import Unflatten, Vectors


class Line:
    """The line w + t d, with w the weights when the object is made and a direction d, (M,) float32."""

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
        self._update = _OptimizerOnVector(optimizer, trainable)

    def move(self, weights: Vectors, grad: Tensor, inside: Tensor, momentum: None) -> tuple[None, float]:
        """Move the weights; see ``ResidualMomentum``. The optimizer has its own momenta."""
        before = weights.read()
        self._update(grad - inside)
        return None, math.sqrt(weights.squared_norm(weights.read() - before))


class _OptimizerOnVector(nn.Cell):
    """A cell that makes the optimizer's step for a gradient (M,)."""

    def __init__(self, optimizer: nn.Optimizer, trainable: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.unflatten = Unflatten(trainable, optimizer.parameters)

    def construct(self, vector: Tensor) -> bool:
        return ops.depend(True, self.optimizer(self.unflatten(vector)))
