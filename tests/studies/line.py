"""A line of two networks trained at once (Wortsman et al., 2021, arXiv 2102.10472), a rival of stage 2.

    dimred train stage-1 DATA --config digits_cooldown --set optimizer.name=tests.studies.line:Line

The gradient of every update is taken at a point u = (1 - a) w_1 + a w_2 of the line, with a uniform in [0, 1], so that
a line costs the passes of one network. Momentum SGD moves both ends, w_1 along (1 - a) of the gradient and w_2 along a
of it, each with the gradient of cos(w_1, w_2)^2 (section 3.1, beta = 1), which keeps the ends apart. What is left after
the last update is the midpoint; before, the weights are those of some point. w_2 begins with the numbers of w_1 in
another order.
"""

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, float32, nn, ops

BETA = 1.0
_each = ops.HyperMap()


class Line(nn.Optimizer):
    """Momentum SGD on both ends of a line; needs a rate for each update, to know which is the last."""

    def __init__(self, params: Any, learning_rate: Any, momentum: float = 0.9, weight_decay: float = 0.0):
        super().__init__(learning_rate, params, weight_decay)
        rng = np.random.default_rng(1)
        at = rng.uniform(size=len(learning_rate) + 1)
        at[0], at[-1] = 0.0, 0.5  # the first gradient is that of the weights as they are
        self.at = Tensor(at, float32)
        self.momentum = momentum
        self.first = self.parameters.clone(prefix="first", init="same")
        self.second = self.parameters.clone(prefix="second", init="same")
        for end in self.second:
            if end.ndim > 1:
                end.set_data(Tensor(rng.permuted(end.asnumpy().ravel()).reshape(end.shape)))
        self.first_moments = self.parameters.clone(prefix="first_moments", init="zeros")
        self.second_moments = self.parameters.clone(prefix="second_moments", init="zeros")

    def construct(self, gradients: tuple[Tensor, ...]) -> bool:
        step = self.global_step.reshape(())
        here, following = ops.gather(self.at, step, 0), ops.gather(self.at, step + 1, 0)
        inner, first, second = (
            self._dot(self.first, self.second),
            self._dot(self.first, self.first),
            self._dot(self.second, self.second),
        )
        # The gradient of inner^2 / (first second) at w_1: 2 inner / (first second) (w_2 - inner / first w_1).
        pull = 2 * BETA * inner / (first * second)
        update = ops.partial(
            self._update, self.get_lr().reshape(()), here, following, pull, pull * inner / first, pull * inner / second
        )
        done = _each(
            update, self.parameters, self.first, self.second, self.first_moments, self.second_moments,
            self.decay_weight(gradients),
        )  # fmt: skip
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        return ops.depend(True, done)

    def _dot(self, one: Any, other: Any) -> Tensor:
        return ops.addn(_each(_product, one, other))

    def _update(
        self,
        rate: Tensor,
        here: Tensor,
        following: Tensor,
        pull: Tensor,
        of_first: Tensor,
        of_second: Tensor,
        weight: Parameter,
        first: Parameter,
        second: Parameter,
        first_moment: Parameter,
        second_moment: Parameter,
        gradient: Tensor,
    ) -> bool:
        first_moved = first_moment * self.momentum + gradient * (1 - here) + second * pull - first * of_first
        second_moved = second_moment * self.momentum + gradient * here + first * pull - second * of_second
        first_reached, second_reached = first - first_moved * rate, second - second_moved * rate
        ops.assign(first_moment, first_moved)
        ops.assign(second_moment, second_moved)
        ops.assign(first, first_reached)
        ops.assign(second, second_reached)
        ops.assign(weight, first_reached * (1 - following) + second_reached * following)
        return True


def _product(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum()
