"""Loss scaling for mixed precision: gradients are computed S times too large, so that small ones don't vanish.

Micikevicius et al., Mixed Precision Training, 2018, section 3.2. The scalers of ``mindspore.amp`` are experimental,
have no bounds and no count of dropped steps, and accept only whole factors; ``parts.py`` takes their settings.
"""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from dimred.errors import ConfigError, check_number, check_type

_TOO_LARGE = 2.0**126  # a loss scaled by it would overflow float32
_each = ops.HyperMap()  # a graph compiles it much faster than a loop


class StaticLossScale(nn.Cell):
    """A constant loss scale S.

    Args:
        scale: S, above 0; a power of two leaves every digit of the gradient unchanged.
        drop_overflow: whether to drop and count a step whose gradient is not finite. If false, every gradient is
            applied (as in the production recipe), in a graph without a branch.

    Attributes:
        scale: S, () float32.
        n_overflows: steps dropped so far, () int32.

    Raises:
        ConfigError: ``scale`` is not above 0, or as large as 2^126; or ``drop_overflow`` is not true or false.
    """

    def __init__(self, scale: float = 1024.0, drop_overflow: bool = True):
        super().__init__(auto_prefix=False)
        check_number("scale", scale, above=0, below=_TOO_LARGE, in_float32=True)
        check_type("drop_overflow", drop_overflow, bool, "True or False")
        self.drops_overflow = drop_overflow
        self.scale = Tensor(scale, ms.float32)
        self.n_overflows = Parameter(Tensor(0, ms.int32), name="loss_scale.overflows", requires_grad=False)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return S loss, () float32."""
        return loss * self.scale

    def unscaled(self, gradients: tuple[Tensor, ...], weight: Tensor | float = 1.0) -> tuple[Tensor, ...]:
        """Convert each gradient g of S loss to that of ``weight`` times the loss: return weight g / S, float32."""
        return _each(ops.partial(_divided, self.scale / weight), gradients)

    def observe(self, all_finite: Tensor) -> bool:
        """Count an overflow, if the step had one, and return True; a subclass also chooses the next S.

        Args:
            all_finite: () bool, whether every entry of the step's gradient was finite.
        """
        ops.assign_add(self.n_overflows, 1 - all_finite.astype(ms.int32))
        return True


class DynamicLossScale(StaticLossScale):
    """A loss scale that shrinks on overflow and grows after a run of good steps.

    S <- max(S / factor, smallest) after an overflow; min(S factor, largest) after ``window`` good steps in a row.

    Args:
        initial: the first S.
        factor: above 1; a power of two leaves every digit of the gradient unchanged.
        window: good steps in a row before S grows.
        smallest, largest: bounds of S.

    Raises:
        ConfigError: a number is not in its range, or not 0 < smallest <= initial <= largest < 2^126.
    """

    def __init__(
        self,
        initial: float = 2.0**16,
        factor: float = 2.0,
        window: int = 2000,
        smallest: float = 1.0,
        largest: float = 2.0**24,
    ):
        for name, value in (("initial", initial), ("smallest", smallest), ("largest", largest)):
            check_number(name, value, above=0, below=_TOO_LARGE, in_float32=True)
        check_number("factor", factor, above=1, in_float32=True, usual="2 is usual")
        check_number("window", window, at_least=1, whole=True)
        if not smallest <= initial <= largest:
            raise ConfigError(
                f"initial is {initial:g}; it must lie between smallest ({smallest:g}) and largest ({largest:g})"
            )
        super().__init__(initial)
        self.factor, self.window = float(factor), int(window)
        self.smallest, self.largest = float(smallest), float(largest)
        self.scale = Parameter(self.scale, name="loss_scale.scale", requires_grad=False)
        self.n_good = Parameter(Tensor(0, ms.int32), name="loss_scale.good_steps", requires_grad=False)

    def observe(self, all_finite: Tensor) -> bool:
        """Count an overflow, if the step had one, choose the next S, and return True; see ``StaticLossScale``."""
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
