"""The step outside the subspace, after the line search.

The line search does not see it: Armijo's inequality holds at w + t d, and this moves the weights on from there, which
can raise the loss. It is made in every step that is not skipped, whether a trial was accepted or not.
"""

import math
from collections.abc import Sequence

from mindspore import Parameter, Tensor, nn, ops

from dimred.errors import ConfigError
from dimred.train_step.optimizers import check_optimizer
from dimred.vectors.base import Vectors
from dimred.vectors.graph import Unflatten


class ResidualMomentum:
    """The published step: m <- gamma m + (g - P' g_k);  w <- w - alpha m   (mindspore.boost's dim_reduce)

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
            weights: after the line search.
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
    """A step of an ordinary optimizer, from w + t d, with g - P' g_k for its gradient.

    Its state is in its own parameters, so that a step that is skipped leaves it alone.

    Args:
        optimizer: over the trainable parameters; with its own schedule and decay groups.
        trainable: in the order of the weight vector.

    Raises:
        ConfigError: the optimizer has other parameters.
    """

    def __init__(self, optimizer: nn.Optimizer, trainable: Sequence[Parameter]):
        check_optimizer(optimizer, trainable)
        if len(optimizer.parameters) != len(trainable):
            raise ConfigError(
                f"optimizer has {len(optimizer.parameters)} parameters, but the network has {len(trainable)} trainable "
                "ones; make it from network.trainable_params()"
            )
        self._update = _OptimizerOnVector(optimizer, trainable)

    def move(self, weights: Vectors, grad: Tensor, inside: Tensor) -> float:
        """Move the weights; see ``ResidualMomentum``. Returns the distance moved."""
        before = weights.read()
        self._update(grad - inside)
        return math.sqrt(weights.squared_norm(weights.read() - before))


class _OptimizerOnVector(nn.Cell):
    """The optimizer's step for a gradient (M,)."""

    def __init__(self, optimizer: nn.Optimizer, trainable: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.unflatten = Unflatten(trainable, optimizer.parameters)

    def construct(self, vector: Tensor) -> bool:
        return ops.depend(True, self.optimizer(self.unflatten(vector)))
