"""Schedule-free SGD: its rate need not fall, because it keeps an average of the weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.config.parts import OptimizerConfig
from dimred.errors import ConfigError
from dimred.train_step.adamw import check_groups, checked_decay
from dimred.train_step.optimizer_state import RATES_SQUARED
from dimred.vectors.parameters import from_arrays, preserved, to_arrays

_each = ops.HyperMap()  # a graph compiles it much faster than a loop


class ScheduleFree(nn.Optimizer):
    """Schedule-free SGD (Defazio et al., The Road Less Scheduled, 2024, arXiv 2405.15682, algorithm 1).

    With the rate r_t, which may warm up but need not fall, and the gradient g at y, the network's weights::

        z <- z - r_t (g + decay y)                     the base point
        c = r_t^2 / (r_1^2 + ... + r_t^2)
        x <- (1 - c) x + c z                           the averaged point
        y <- (1 - beta) z + beta x

    This optimizer's state is z; it takes as much memory as momentum. The averaged point
    x = (y - (1 - beta) z) / beta is the network to evaluate and keep; ``averaged`` returns it, and ``in_place`` puts it
    into the network. As for any average, its BatchNorm statistics must be re-estimated.

    Args:
        params: parameters, or groups with their own ``weight_decay``.
        learning_rate: a number, or a list with one per update. Good rates are at least 10 times momentum SGD's.
        beta: fraction of x in y, 0 < beta < 1.
        weight_decay: the factor called decay above, 0 <= decay < 1; or a cell that returns it for each update.

    Raises:
        ConfigError: ``beta`` or ``weight_decay`` is not in its range, or a group has its own learning rate or asks for
            ``grad_centralization``.
    """

    def __init__(
        self,
        params: Sequence[Any],
        learning_rate: float | list[float] = 1.0,
        beta: float = 0.9,
        weight_decay: float = 0.0,
    ):
        OptimizerConfig.check_arguments(name="schedule_free", beta=beta)
        weight_decay = checked_decay(weight_decay)
        super().__init__(learning_rate, params, weight_decay)
        check_groups(self)
        if self.is_group_lr:
            raise ConfigError(
                "params has groups with their own lr, but ScheduleFree has one learning_rate for all; leave lr out",
                argument="params",
            )
        self.beta = float(beta)
        self.base = self.parameters.clone(prefix="schedule_free_z", init="same")
        self.rates_squared = Parameter(Tensor(0.0, ms.float32), name=RATES_SQUARED)

    def construct(self, gradients: tuple[Tensor, ...]) -> bool:
        decay = self.get_weight_decay()
        rate = self.get_lr().reshape(())
        total = self.rates_squared + rate * rate
        fraction = rate * rate / ops.maximum(total, 1e-30)
        is_first = self.rates_squared == 0
        weights = self.parameters
        base = self.base
        update = self._update
        if self.is_group:
            updates = _each(ops.partial(update, is_first, rate, fraction), decay, weights, base, gradients)
        else:
            updates = _each(ops.partial(update, is_first, rate, fraction, decay), weights, base, gradients)
        updates = ops.depend(ops.assign(self.rates_squared, total), updates)
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        return ops.depend(True, updates)

    def _update(
        self,
        is_first: Tensor,
        rate: Tensor,
        fraction: Tensor,
        decay: Any,
        weight: Parameter,
        base_point: Parameter,
        gradient: Tensor,
    ) -> bool:
        base = ops.select(is_first, weight, base_point)  # weights may have been loaded after this object was made
        average = (weight - base * (1.0 - self.beta)) / self.beta
        next_base = base - (gradient + weight * decay) * rate
        average = average + (next_base - average) * fraction
        ops.assign(base_point, next_base)
        ops.assign(weight, next_base + (average - next_base) * self.beta)
        return True

    def averaged(self) -> dict[str, np.ndarray]:
        """Return the averaged point x, parameter name -> array; before the first update, x is the weights."""
        weights = to_arrays(self.parameters)
        bases = to_arrays(self.base)
        if self.rates_squared.asnumpy() == 0:
            return weights
        return {
            name: ((weight - base * np.float32(1 - self.beta)) / np.float32(self.beta)).astype(np.float32)
            for (name, weight), base in zip(weights.items(), bases.values(), strict=True)
        }

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averaged point into the network inside the block; then restore the weights, byte for byte."""
        with preserved(list(self.parameters)):
            from_arrays(self.parameters, self.averaged(), "the averaged point")
            yield
