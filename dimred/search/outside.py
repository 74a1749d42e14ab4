"""What moves the weights after the line search: the residual step outside the subspace, and weight decay.

Neither is seen by the line search: Armijo's inequality holds at w + t d, and both move the weights on from there, which
can raise the loss.
"""

import math
from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor

from dimred.errors import ConfigError
from dimred.vectors.base import Vectors


class NoResidual:
    """The weights stay in start + span(P), and nothing is spent. Defines what every residual step has.

    A residual step follows the residual gradient g - P' g_k, in every step that is not skipped, whether a trial was
    accepted or not.

    Attributes:
        needs_inside: whether ``move`` needs P' g_k, which costs a pass over the basis.
    """

    needs_inside = False

    def move(
        self, weights: Vectors, grad: Tensor, inside: Tensor | None, momentum: Tensor | None
    ) -> tuple[Tensor | None, float]:
        """Move the weights; returns the new momentum, which the search remembers, and the distance moved.

        Args:
            weights: after the line search.
            grad: g, (M,).
            inside: P' g_k, (M,), where it is needed.
            momentum: m, (M,); None stands for 0.
        """
        return momentum, 0.0


class ResidualMomentum(NoResidual):
    """m <- gamma m + (g - P' g_k);  w <- w - alpha m   (mindspore.boost's dim_reduce)

    Args:
        gamma: momentum, 0 <= gamma < 1.
        alpha: step size, above 0.
    """

    needs_inside = True

    def __init__(self, gamma: float, alpha: float):
        self._gamma = gamma
        self._alpha = alpha

    def move(
        self, weights: Vectors, grad: Tensor, inside: Tensor | None, momentum: Tensor | None
    ) -> tuple[Tensor | None, float]:
        before = [] if momentum is None else [(self._gamma, momentum)]
        new, square = weights.add(-self._alpha, (1.0, grad), (-1.0, inside), *before)
        return new, self._alpha * math.sqrt(square)


def make_residual(gamma: float, alpha: float) -> NoResidual:
    """The residual step; its identity where alpha is 0."""
    return NoResidual() if alpha == 0 else ResidualMomentum(gamma, alpha)


class NoWeightDecay:
    """No parameter decays."""

    def move(self, weights: Vectors, start: Tensor) -> float:
        """Move the weights by the decay of ``start`` (M,), the weights before the step; the distance moved."""
        return 0.0


class WeightDecay(NoWeightDecay):
    """w <- w - decay * start, with a decay for each weight.

    Stage 2 of the production recipe hands its update u to plain SGD with learning rate 1 and stage 1's decay groups:
    w <- w - (u + decay w). Here decay comes with accepted steps only, so that a search that has converged does not
    shrink the network step by step.

    Args:
        decay: (M,) float32.
    """

    def __init__(self, decay: Tensor):
        self._decay = decay

    def move(self, weights: Vectors, start: Tensor) -> float:
        _, square = weights.add(-1.0, (1.0, self._decay * start))
        return math.sqrt(square)


def make_weight_decay(weight_decay: float | Sequence[float], trainable: Sequence[Parameter]) -> NoWeightDecay:
    """The decay of these parameters; its identity where none decays.

    Args:
        weight_decay: one number, or one for each parameter.
        trainable: in the order of the weight vector.

    Raises:
        ConfigError: another number of decays than of parameters.
    """
    decays = weight_decay if isinstance(weight_decay, Sequence) else [weight_decay] * len(trainable)
    if len(decays) != len(trainable):
        raise ConfigError(
            f"weight_decay has {len(decays)} numbers, the network {len(trainable)} trainable parameters; give one "
            "number for all, or one for each"
        )
    if not any(decays):
        return NoWeightDecay()
    return WeightDecay(Tensor(np.repeat(np.array(decays, np.float32), [parameter.size for parameter in trainable])))
