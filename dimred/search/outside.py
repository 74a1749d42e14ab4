"""What moves the weights after the line search: residual momentum and weight decay."""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from mindspore import Parameter, Tensor

from dimred.errors import ConfigError, check_number
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


class WeightDecay(Protocol):
    """What shrinks the weights."""

    def move(self, weights: Weights, start: Tensor) -> float:
        """Move the weights by the decay of ``start`` (M,), the weights before the step; the distance moved."""


class NoWeightDecay:
    """No parameter decays."""

    def move(self, weights: Weights, start: Tensor) -> float:
        """See ``WeightDecay.move``."""
        return 0.0


class DecayOfEachWeight:
    """weights <- weights - decay * start, with a decay for each weight.

    Args:
        decay: (M,) float32.
    """

    def __init__(self, decay: Tensor):
        self._decay = decay

    def move(self, weights: Weights, start: Tensor) -> float:
        """See ``WeightDecay.move``."""
        _, square = weights.add(-1.0, (1.0, self._decay * start))
        return math.sqrt(square)


def make_weight_decay(weight_decay: float | Sequence[float], trainable: Sequence[Parameter]) -> WeightDecay:
    """The decay of these parameters, or its identity where none decays.

    Args:
        weight_decay: one number, or one for each parameter; at least 0 and below 1.
        trainable: in the order of the weight vector.

    Raises:
        ConfigError: an option outside its range, or another number of them than of parameters.
    """
    decays = list(weight_decay) if isinstance(weight_decay, Sequence) else [weight_decay] * len(trainable)
    for decay in decays:
        check_number("weight_decay", decay, at_least=0, below=1, usual="0.0001 is usual, 0 for none")
    if len(decays) != len(trainable):
        raise ConfigError(
            f"weight_decay has {len(decays)} numbers, the network {len(trainable)} trainable parameters; give one "
            "number for all, or one for each"
        )
    if not any(decays):
        return NoWeightDecay()
    return DecayOfEachWeight(
        Tensor(np.repeat(np.array(decays, np.float32), [parameter.size for parameter in trainable]))
    )
