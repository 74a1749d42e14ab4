"""Weight decay beside the search.

Stage 2 of the production recipe hands its update u to plain SGD with learning rate 1 and the decay groups of stage 1:
w <- w - (u + weight_decay w). Here the decay belongs to accepted steps. After a failed search the weights stay where
they are, so that a search that has converged does not shrink the network step by step. The search itself does not see
the decay: Armijo's inequality holds at w + t d, and decay, like the residual step, moves the weights on from there
unguarded.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from mindspore import Parameter, Tensor

from dimred.errors import ConfigError, check_number
from dimred.vectors.weight_vector import Weights


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
