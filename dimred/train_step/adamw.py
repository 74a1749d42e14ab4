"""AdamW: Adam with weight decay that is decoupled from the gradient."""

import math
from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.config.parts import OptimizerConfig
from dimred.errors import ConfigError

_each = ops.HyperMap()  # a graph compiles it much faster than a loop


class AdamW(nn.Optimizer):
    """AdamW (Loshchilov & Hutter, Decoupled Weight Decay Regularization, 2019, algorithm 2).

    With the rate r_t for update t = 1, 2, ..., and the gradient g::

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        w <- w - r_t ((m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + decay w)

    t is ``global_step`` + 1, and the optimizer's checkpoints hold ``global_step``. MindSpore's
    ``nn.AdamWeightDecay`` has no bias correction: it leaves out both divisors with a power of beta.

    Args:
        params: parameters, or groups with their own ``weight_decay`` and ``lr``.
        learning_rate: a number, or a list with one per update.
        beta1, beta2: decay rates for the first and second moment, 0 <= beta < 1.
        eps: number added to the root of the second moment, above 0.
        weight_decay: the factor called decay above, 0 <= decay < 1; or a cell that returns it for each update.

    Raises:
        ConfigError: ``beta1``, ``beta2``, ``eps`` or ``weight_decay`` is not in its range, or a group asks for
            ``grad_centralization``.
    """

    def __init__(
        self,
        params: Sequence[Any],
        learning_rate: float | list[float] = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ):
        OptimizerConfig.check_arguments(name="adamw", beta1=beta1, beta2=beta2, eps=eps)
        weight_decay = checked_decay(weight_decay)
        super().__init__(learning_rate, params, weight_decay)
        check_groups(self)
        self.beta1 = float(beta1)
        self.beta2 = float(beta2)
        self.eps = float(eps)
        self.log_beta1 = _log_as_float32(beta1)
        self.log_beta2 = _log_as_float32(beta2)
        self.first_moments = self.parameters.clone(prefix="adamw_m", init="zeros")
        self.second_moments = self.parameters.clone(prefix="adamw_v", init="zeros")
        self.n_parameters = len(self.parameters)
        self.adam = ops.Adam()

    def construct(self, gradients: tuple[Tensor, ...]) -> bool:
        rates = self.get_lr()
        decays = self.get_weight_decay()
        if not self.is_group_lr:
            rates = (rates,) * self.n_parameters
        if not self.is_group:
            decays = (decays,) * self.n_parameters
        t = (self.global_step + 1).astype(ms.float32).reshape(())
        # 1 - beta^t in float32 would lose four digits of 1 - 0.999.
        root = ops.sqrt(-ops.expm1(t * self.log_beta2))
        factor = root / -ops.expm1(t * self.log_beta1)
        updates = _each(
            ops.partial(self._update, factor, self.eps * root),
            rates,
            decays,
            self.decay_flags,
            self.parameters,
            self.first_moments,
            self.second_moments,
            gradients,
        )
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        return ops.depend(True, updates)

    def _update(
        self,
        factor: Tensor,
        eps: Tensor,
        rate: Any,
        decay: Any,
        decays: bool,
        weight: Parameter,
        first_moment: Parameter,
        second_moment: Parameter,
        gradient: Tensor,
    ) -> bool:
        if decays:
            ops.assign(weight, weight * (1.0 - rate * decay))
        # The kernel gets 0 for both powers of beta, so that it corrects no bias: the rate and eps include it already.
        self.adam(weight, first_moment, second_moment, 0.0, 0.0, rate * factor, self.beta1, self.beta2, eps, gradient)
        return True


def checked_decay(weight_decay: Any) -> Any:
    """Return a weight decay that dimred's optimizers accept: a number in its range, or a cell that returns one."""
    if isinstance(weight_decay, nn.Cell):  # MindSpore uses a cell for a decay that changes
        return weight_decay
    OptimizerConfig.check_arguments(weight_decay=weight_decay)
    return float(weight_decay)


def check_groups(optimizer: nn.Optimizer) -> None:
    """Check that no parameter group asks for centred gradients, which dimred's optimizers do not support."""
    if optimizer.is_group and any(optimizer.grad_centralization_flags):
        raise ConfigError(
            f"params has groups with grad_centralization, which {type(optimizer).__name__} lacks; leave it out",
            argument="params",
        )


def _log_as_float32(beta: float) -> float:
    """Return the log of beta, rounded to float32 first, as the kernel sees it; the log of 0 is -inf."""
    kernel_beta = float(np.float32(beta))
    return math.log(kernel_beta) if kernel_beta > 0 else -math.inf
