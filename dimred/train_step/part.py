"""The interfaces of a step's parts: a loss scale, a part that changes the gradient, a part that follows the weights."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import mindspore as ms
from mindspore import Parameter, Tensor, nn

from dimred.train_step.precision import half_as_float32

if TYPE_CHECKING:

    class TypedCell:
        """The methods of ``nn.Cell`` that steps and parts use.

        MindSpore has no type hints, so mypy would accept any ``Cell`` subclass as a step or a part.
        """

        def __init__(self, *, auto_prefix: bool = True) -> None: ...
        def __call__(self, *inputs: Any) -> Any: ...
        def get_parameters(self) -> Iterator[Parameter]: ...

else:
    TypedCell = nn.Cell


class StepPart(TypedCell):
    """A part of a step: a ``LossScale``, a ``GradientPart`` or a ``WeightsPart``.

    Its own parameters are named ``<name>.<...>``. A state holds them, and a resume or a cooldown restores them.

    Attributes:
        name: the part's name, and that of its section in the configuration, if it has one.
        telemetry: names of the numbers that it reports at each step.
        statistics: parameters that each rank computes from its own images. Before a state is saved, each is set to
            its mean over the ranks.
    """

    name: ClassVar[str] = ""
    telemetry: ClassVar[tuple[str, ...]] = ()
    statistics: Sequence[Parameter] = ()

    @property
    def parameters(self) -> list[Parameter]:
        """Return the part's own parameters; their names begin with its name."""
        return [parameter for parameter in self.get_parameters() if parameter.name.startswith(f"{self.name}.")]


class LossScale(StepPart):
    """The base class for loss scales; by itself it scales nothing and drops nothing.

    Attributes:
        drops_overflow: whether a step whose gradient is not finite is dropped.
    """

    name = "loss_scale"
    drops_overflow = False

    def scaled(self, loss: Tensor, total: Tensor) -> Tensor:
        """Return the number to differentiate, () float32.

        Args:
            loss: f, a batch's mean loss.
            total: f times the batch's weight; this class returns it.
        """
        return total

    def unscaled(self, gradients: tuple[Tensor, ...], weight: Tensor) -> tuple[Tensor, ...]:
        """Convert gradients taken of ``scaled`` to the gradients of f, times the weight."""
        return gradients

    def scale_of_step(self) -> tuple[Tensor, ...]:
        """Return S as it is before ``observe``, () float32, for the telemetry; nothing without a scale."""
        return ()

    def overflows(self) -> tuple[Tensor, ...]:
        """Return the number of steps dropped so far, () int32, for the telemetry; nothing without a scale."""
        return ()

    def observe(self, all_finite: Tensor) -> bool:
        """Take note of a step, and return True.

        Args:
            all_finite: () bool, whether every entry of the step's gradient was finite.
        """
        return True


class GradientPart(StepPart):
    """A part that changes the gradient of the whole batch before the update, such as ``Clipping``."""

    def construct(self, gradients: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the changed gradients, with their shapes and types, and a number, (), for each name in ``telemetry``.

        Args:
            gradients: one for each parameter; in a search, one vector (M,).
        """
        raise NotImplementedError


class WeightsPart(StepPart):
    """A part that follows the weights, such as ``EMA``.

    It is called after each update, but not after a dropped step; in a search, after each accepted step. It reports no
    numbers.

    Attributes:
        values: the network parameters that it follows.
    """

    values: Sequence[Parameter] = ()

    def construct(self) -> bool:
        """Follow the update, and return True."""
        raise NotImplementedError

    def _copies(self, prefix: str) -> ms.ParameterTuple:
        """Make a copy of each value, float32 for a value in half precision, named ``<prefix>.<name of the value>``."""
        return ms.ParameterTuple(
            [
                Parameter(half_as_float32(value.value()).copy(), name=f"{prefix}.{value.name}", requires_grad=False)
                for value in self.values
            ]
        )


Kind = TypeVar("Kind", bound=StepPart)


def parts_of(kind: type[Kind], parts: Sequence[StepPart]) -> list[Kind]:
    """Return the parts of this kind, in order."""
    return [part for part in parts if isinstance(part, kind)]


def average_of(parts: Sequence[StepPart]) -> Any:
    """Return the ``EMA`` among the parts; None without one."""
    return next((part for part in parts if part.name == "ema"), None)
