"""What moves the weights after the line search: the residual step outside the subspace, and weight decay.

Neither is seen by the line search: Armijo's inequality holds at w + t d, and both move the weights on from there, which
can raise the loss.
"""

import math
from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.config.search import SearchOptions
from dimred.errors import ConfigError
from dimred.vectors.base import Vectors
from dimred.vectors.graph import Unflatten


class NoResidual:
    """The weights stay in start + span(P), and nothing is spent. Defines what every residual step has.

    A residual step follows the residual gradient g - P' g_k, in every step that is not skipped, whether a trial was
    accepted or not.

    Attributes:
        needs_inside: whether ``move`` needs P' g_k, which costs a pass over the basis.
        is_training: whether it is a training step of its own. Then a step without an accepted trial is a training step
            all the same: BatchNorm's statistics and the EMA follow it, and it does not count towards
            ``max_rejected_steps``. To end a cooldown because the search found nothing would leave it at a high rate.
    """

    needs_inside = False
    is_training = False

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


class ContinuedOptimizer(NoResidual):
    """An ordinary optimizer goes on, from w + t d, with g - P' g_k for its gradient.

    Without directions (k = 0) that is plain training with this optimizer, byte for byte. Its state is in its own
    parameters, so that a step that is skipped leaves it alone.

    Args:
        optimizer: over the trainable parameters; with its own schedule and decay groups.
        trainable: in the order of the weight vector.

    Raises:
        ConfigError: the optimizer has other parameters.
    """

    needs_inside = True
    is_training = True

    def __init__(self, optimizer: nn.Optimizer, trainable: Sequence[Parameter]):
        if {id(weight) for weight in optimizer.parameters} != {id(weight) for weight in trainable}:
            raise ConfigError(
                f"optimizer has {len(optimizer.parameters)} parameters, which are not the network's {len(trainable)} "
                "trainable ones; make it from network.trainable_params()"
            )
        self._update = _OptimizerOnVector(optimizer, trainable)

    def move(
        self, weights: Vectors, grad: Tensor, inside: Tensor | None, momentum: Tensor | None
    ) -> tuple[Tensor | None, float]:
        before = weights.read()
        self._update(grad - inside)
        return momentum, math.sqrt(weights.squared_norm(weights.read() - before))


class _OptimizerOnVector(nn.Cell):
    """The optimizer's step for a gradient (M,)."""

    def __init__(self, optimizer: nn.Optimizer, trainable: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.unflatten = Unflatten(trainable)
        place = {id(weight): number for number, weight in enumerate(trainable)}
        self.places = [place[id(weight)] for weight in optimizer.parameters]

    def construct(self, vector: Tensor) -> bool:
        parts = self.unflatten(vector)
        return ops.depend(True, self.optimizer(tuple([parts[place] for place in self.places])))


def make_residual(options: SearchOptions, optimizer: nn.Optimizer | None, trainable: Sequence[Parameter]) -> NoResidual:
    """The residual step that ``options.residual`` names; its identity where it is off.

    Raises:
        ConfigError: ``continued`` without an optimizer, or with one of other parameters; an optimizer for another one.
    """
    if (options.residual == "continued") != (optimizer is not None):
        raise ConfigError(
            f"residual is {options.residual!r}, and optimizer is {'None' if optimizer is None else 'given'}; "
            "an optimizer goes with residual='continued', which needs one"
        )
    if optimizer is not None:
        return ContinuedOptimizer(optimizer, trainable)
    if options.residual == "off" or options.alpha == 0:
        return NoResidual()
    return ResidualMomentum(options.gamma, options.alpha)


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
