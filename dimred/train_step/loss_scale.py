"""Loss scaling for mixed precision: gradients are computed S times too large so that small ones don't vanish.

Micikevicius et al., Mixed Precision Training, 2018, section 3.2. The ``mindspore.amp`` scalers are experimental, have
no bounds, don't count dropped steps, and accept only whole factors.
"""

from typing import ClassVar

import mindspore as ms
from mindspore import Parameter, Tensor, ops

from dimred.config.parts import LossScaleConfig
from dimred.train_step.part import LossScale

_each = ops.HyperMap()  # a graph compiles it much faster than a loop


class StaticLossScale(LossScale):
    """A constant loss scale S.

    Args:
        scale: S, above 0 and below 2^126; a power of two leaves every digit of the gradient unchanged.
        drop_overflow: whether to drop and count a step whose gradient is not finite. If false, every gradient is
            applied (as in the production recipe), in a graph without a branch.

    Attributes:
        scale: S, () float32.
        n_overflows: steps dropped so far, () int32.

    Raises:
        ConfigError: an argument is not in its range; see ``LossScaleConfig``.
    """

    telemetry: ClassVar[tuple[str, ...]] = ("loss_scale", "n_overflows")

    def __init__(self, scale: float = 1024.0, drop_overflow: bool = True):
        super().__init__(auto_prefix=False)
        LossScaleConfig.check_arguments(name="static", scale=scale, drop_overflow=drop_overflow)
        self.drops_overflow = drop_overflow
        self.scale = Tensor(scale, ms.float32)
        self.n_overflows = Parameter(Tensor(0, ms.int32), name="loss_scale.overflows", requires_grad=False)

    def scaled(self, loss: Tensor, total: Tensor) -> Tensor:
        """Return S f. The weight is left to ``unscaled``, because here it could overflow half precision."""
        return loss * self.scale

    def unscaled(self, gradients: tuple[Tensor, ...], weight: Tensor) -> tuple[Tensor, ...]:
        """Convert each gradient g, taken of S f, to weight g / S, float32."""
        return _each(ops.partial(_divided, self.scale / weight), gradients)

    def scale_of_step(self) -> tuple[Tensor, ...]:
        return (self.scale + 0.0,)

    def overflows(self) -> tuple[Tensor, ...]:
        return (self.n_overflows + 0,)

    def observe(self, all_finite: Tensor) -> bool:
        """Count an overflow if the step had one, and return True; a subclass also chooses the next S."""
        ops.assign_add(self.n_overflows, 1 - all_finite.astype(ms.int32))
        return True


class DynamicLossScale(StaticLossScale):
    """A loss scale that shrinks on overflow, and grows after enough good steps in a row.

    S <- max(S / factor, smallest) after an overflow; min(S factor, largest) after ``window`` good steps in a row.

    Args:
        scale: the first S.
        factor: above 1; a power of two leaves every digit of the gradient unchanged.
        window: good steps in a row before S grows.
        smallest, largest: bounds of S.

    Raises:
        ConfigError: an argument is not in its range, or ``scale`` is not between the bounds; see ``LossScaleConfig``.
    """

    def __init__(
        self,
        scale: float = 2.0**16,
        factor: float = 2.0,
        window: int = 2000,
        smallest: float = 1.0,
        largest: float = 2.0**24,
    ):
        LossScaleConfig.check_arguments(
            name="dynamic", scale=scale, factor=factor, window=window, smallest=smallest, largest=largest
        )
        super().__init__(scale)
        self.factor = float(factor)
        self.window = int(window)
        self.smallest = float(smallest)
        self.largest = float(largest)
        self.scale = Parameter(self.scale, name="loss_scale.scale", requires_grad=False)
        self.n_good = Parameter(Tensor(0, ms.int32), name="loss_scale.good_steps", requires_grad=False)

    def observe(self, all_finite: Tensor) -> bool:
        """Count an overflow if the step had one, choose the next S, and return True."""
        finite = all_finite.astype(ms.int32)
        good = (self.n_good + 1) * finite
        grows = good >= self.window
        larger = ops.minimum(self.scale * self.factor, self.largest)
        smaller = ops.maximum(self.scale / self.factor, self.smallest)
        scale = ops.select(grows, larger, self.scale * 1.0)
        ops.assign(self.scale, ops.select(all_finite, scale, smaller))
        ops.assign(self.n_good, good * (1 - grows.astype(ms.int32)))
        ops.assign_add(self.n_overflows, 1 - finite)
        return True


def _divided(divisor: Tensor, gradient: Tensor) -> Tensor:
    return gradient.astype(ms.float32) / divisor
