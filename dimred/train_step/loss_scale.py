"""Loss scales: half-precision gradients are computed S times too large, so that small ones don't vanish, then unscaled.

Micikevicius et al., Mixed Precision Training, 2018, section 3.2; the dynamic rule is the common one of half-precision
training: halve on overflow, double after a row of good steps.
"""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from dimred.errors import ConfigError, check_number

_LARGEST = 2.0**126  # of float32's range; its inverse is still a normal number


class NoLossScale(nn.Cell):
    """S = 1, and no step is dropped. Defines what every loss scale has.

    Attributes:
        drops_overflow: whether a step whose gradient is not finite is dropped.
    """

    drops_overflow = False

    def __init__(self, scale: float = 1.0):
        super().__init__(auto_prefix=False)
        # Tensors, because a graph that returns Python numbers calls the interpreter for them.
        self.constant_scale = Tensor(scale, ms.float32)
        self.no_overflows = Tensor(0, ms.int32)

    def scaled(self, loss: Tensor) -> Tensor:
        """S loss, () float32."""
        return loss

    def unscaled(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """gradients / S; in float32 where S is not 1."""
        return gradients

    def current(self) -> Tensor:
        """S."""
        return self.constant_scale

    def overflows(self) -> Tensor:
        """Steps dropped so far."""
        return self.no_overflows

    def observe(self, all_finite: Tensor) -> bool:
        """After a step: count an overflow, and choose the next S."""
        return True


class StaticLossScale(NoLossScale):
    """S stays.

    Args:
        scale: S, above 0; a power of two leaves every digit of the gradient as it is.
        drop_overflow: drop a step whose gradient is not finite, and count it; or apply whatever comes (the production
            recipe's choice, and one graph without a branch).

    Raises:
        ConfigError: ``scale`` outside its range.
    """

    def __init__(self, scale: float = 1024.0, drop_overflow: bool = True):
        check_number("loss_scale.scale", scale, above=0, below=_LARGEST, usual="1024 is usual")
        super().__init__(float(scale))
        self.scale = float(scale)
        self.drops_overflow = drop_overflow
        if drop_overflow:
            self.n_overflows = Parameter(Tensor(0, ms.int32), name="loss_scale.overflows", requires_grad=False)

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.scale

    def unscaled(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple([gradient.astype(ms.float32) * (1.0 / self.scale) for gradient in gradients])

    def overflows(self) -> Tensor:
        if self.drops_overflow:
            return self.n_overflows + 0
        return self.no_overflows

    def observe(self, all_finite: Tensor) -> bool:
        if self.drops_overflow:
            ops.assign_add(self.n_overflows, 1 - all_finite.astype(ms.int32))
        return True


class DynamicLossScale(NoLossScale):
    """S <- max(S / factor, smallest) after an overflow; min(S factor, largest) after ``window`` good steps in a row.

    Args:
        initial: the first S.
        factor: above 1; a power of two leaves every digit of the gradient as it is.
        window: good steps in a row before S grows.
        smallest, largest: bounds of S.

    Raises:
        ConfigError: an option outside its range.
    """

    drops_overflow = True

    def __init__(
        self,
        initial: float = 2.0**16,
        factor: float = 2.0,
        window: int = 2000,
        smallest: float = 1.0,
        largest: float = 2.0**24,
    ):
        super().__init__()
        check_number("loss_scale.factor", factor, above=1, usual="2 is usual")
        check_number("loss_scale.window", window, at_least=1, whole=True, usual="2000 is usual")
        check_number("loss_scale.smallest", smallest, above=0, usual="1 is usual")
        check_number("loss_scale.largest", largest, above=0, below=_LARGEST)
        check_number("loss_scale.initial", initial, above=0, usual="65536 is usual")
        if not smallest <= initial <= largest:
            raise ConfigError(
                f"loss_scale.initial is {initial}; it must lie between smallest ({smallest}) and largest ({largest})"
            )
        self.factor = float(factor)
        self.window = window
        self.smallest = float(smallest)
        self.largest = float(largest)
        self.scale = Parameter(Tensor(initial, ms.float32), name="loss_scale.scale", requires_grad=False)
        self.n_good = Parameter(Tensor(0, ms.int32), name="loss_scale.good_steps", requires_grad=False)
        self.n_overflows = Parameter(Tensor(0, ms.int32), name="loss_scale.overflows", requires_grad=False)

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.scale

    def unscaled(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple([gradient.astype(ms.float32) / self.scale for gradient in gradients])

    def current(self) -> Tensor:
        return self.scale + 0.0

    def overflows(self) -> Tensor:
        return self.n_overflows + 0

    def observe(self, all_finite: Tensor) -> bool:
        finite = all_finite.astype(ms.int32)
        good = (self.n_good + 1) * finite
        grows = good >= self.window
        grown = ops.minimum(self.scale * self.factor, self.largest)
        shrunk = ops.maximum(self.scale / self.factor, self.smallest)
        kept = ops.select(grows, grown, self.scale * 1.0)
        ops.assign(self.scale, ops.select(all_finite, kept, shrunk))
        ops.assign(self.n_good, good * (1 - grows.astype(ms.int32)))
        ops.assign_add(self.n_overflows, 1 - finite)
        return True
