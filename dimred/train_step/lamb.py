"""LAMB, from elementary operations: MindSpore's own ``nn.Lamb`` has no CPU kernel."""

from collections.abc import Sequence
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops


class Lamb(nn.Optimizer):
    """Adam's step in each layer, scaled to the length of the layer's weights.

    m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
    u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w
    w <- w - rate (|w| / |u|) u, with the ratio 1 where either norm is 0

    (You et al., Large Batch Optimization for Deep Learning, 2020, algorithm 2, with phi the identity.)

    Args:
        params: parameters, or groups with their own ``weight_decay``.
        learning_rate: a number, or one for each update.
        beta1, beta2, eps, weight_decay: see above.
    """

    def __init__(
        self,
        params: Sequence[Any],
        learning_rate: float | list[float] = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ):
        super().__init__(learning_rate, params, weight_decay)
        self.beta1 = beta1
        self.beta2 = beta2
        self.eps = eps
        self.first_moment = self.parameters.clone(prefix="lamb_m", init="zeros")
        self.second_moment = self.parameters.clone(prefix="lamb_v", init="zeros")

    def construct(self, gradients: tuple[Tensor, ...]) -> bool:
        decay = self.get_weight_decay()
        rate = self.get_lr()
        update = (self.global_step.reshape(()) + 1).astype(ms.float32)
        first_share = 1.0 - ops.pow(self.beta1, update)
        second_share = 1.0 - ops.pow(self.beta2, update)
        for index, weight in enumerate(self.parameters):
            gradient = gradients[index]
            first = self.first_moment[index] * self.beta1 + gradient * (1.0 - self.beta1)
            second = self.second_moment[index] * self.beta2 + gradient * gradient * (1.0 - self.beta2)
            ops.assign(self.first_moment[index], first)
            ops.assign(self.second_moment[index], second)
            step = (first / first_share) / (ops.sqrt(second / second_share) + self.eps)
            step = step + weight * (decay[index] if self.is_group else decay)
            ratio = _trust(_norm(weight), _norm(step))
            ops.assign(weight, weight - (rate[index] if self.is_group_lr else rate) * ratio * step)
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        return True


def _norm(values: Tensor) -> Tensor:
    return ops.sqrt(ops.reduce_sum(values * values))


def _trust(weight_norm: Tensor, step_norm: Tensor) -> Tensor:
    """|w| / |u|, or 1 where either is 0."""
    usable = ops.logical_and(weight_norm > 0, step_norm > 0)
    return ops.select(usable, weight_norm / ops.maximum(step_norm, 1e-30), ops.ones_like(weight_norm))
