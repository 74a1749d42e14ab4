"""SNOO around momentum SGD (Kallusky et al., 2025, arXiv 2510.15830, algorithm 1), a rival of stage 2.

    dimred train stage-1 DATA --config digits_cooldown --set optimizer.name=tests.studies.snoo:Snoo

Every ``EVERY`` updates, with the weights w' that the inner optimizer reached from the slow weights w::

    s = w - w';   b <- momentum b + s;   w <- w - rate (momentum b + s)

and the inner optimizer goes on from w. Momentum 0 is Lookahead. The settings are near those that a record of nanoGPT's
speed run used.
"""

from typing import Any

from mindspore import Parameter, Tensor, nn, ops

EVERY, RATE, MOMENTUM = 28, 0.7, 0.4
_each = ops.HyperMap()


class Snoo(nn.Optimizer):
    """Momentum SGD inside, Nesterov's momentum on its displacement outside; weights and slow weights begin equal."""

    def __init__(self, params: Any, learning_rate: Any, momentum: float = 0.9, weight_decay: float = 0.0):
        super().__init__(learning_rate, params, weight_decay)
        self.momentum = momentum
        self.moments = self.parameters.clone(prefix="moments", init="zeros")
        self.slow = self.parameters.clone(prefix="snoo_slow", init="same")
        self.velocities = self.parameters.clone(prefix="snoo_velocity", init="zeros")

    def construct(self, gradients: tuple[Tensor, ...]) -> bool:
        is_outer = (self.global_step.reshape(()) + 1) % EVERY == 0
        update = ops.partial(self._update, self.get_lr().reshape(()), is_outer)
        of_all = (self.parameters, self.moments, self.slow, self.velocities, self.decay_weight(gradients))
        done = _each(update, *of_all)
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        return ops.depend(True, done)

    def _update(
        self,
        rate: Tensor,
        is_outer: Tensor,
        weight: Parameter,
        moment: Parameter,
        slow: Parameter,
        velocity: Parameter,
        gradient: Tensor,
    ) -> bool:
        moved = moment * self.momentum + gradient
        inner = weight - moved * rate
        after = velocity * MOMENTUM + (slow - inner)
        reached = ops.select(is_outer, slow - (after * MOMENTUM + slow - inner) * RATE, inner)
        ops.assign(moment, moved)
        ops.assign(velocity, ops.select(is_outer, after, velocity))
        ops.assign(slow, ops.select(is_outer, reached, slow))
        ops.assign(weight, reached)
        return True
