"""The step parts that a user may give: dimred's own, a plain number, or a ``mindspore.amp`` loss scale."""

from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import Any

from mindspore import amp, nn

from dimred.errors import ConfigError, check_type, shown
from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale, StaticLossScale
from dimred.train_step.part import GradientPart, LossScale, StepPart, WeightsPart

_LARGEST_SCALE = 2.0**125  # for MindSpore's dynamic scale, which itself has no upper bound


def collect_parts(network: nn.Cell, *, parts: Sequence[StepPart], **usual: Any) -> tuple[StepPart, ...]:
    """Collect a step's parts, make each from its argument, and check them together.

    Args:
        network: network and loss in one cell.
        parts: the user's own parts; see ``StepPart``.
        usual: the arguments for the usual parts, by name; None for no such part.
            ``loss_scale``: a ``LossScale``; a number, for a static one; or one from ``mindspore.amp``, whose settings
            and current scale are used: ``StaticLossScaler``, ``DynamicLossScaler``, ``FixedLossScaleManager``,
            ``DynamicLossScaleManager``.
            ``clipping``: a ``GradientPart`` such as ``Clipping``; or a number, its norm.
            ``ema``: ``EMA`` of the network; or a number, its decay, with the ramp.

    Raises:
        ConfigError: a part is none of these, or a number is outside its range; two parts share a name; a part's
            parameter is not named after it; or a part follows another network.
    """
    check_type("network", network, nn.Cell, "a cell of the network and its loss, such as nn.WithLossCell")
    check_type("parts", parts, (list, tuple), "a list of parts of your own, see dimred/train_step/README.md")
    usual_parts = [_usual_part(name, value, network) for name, value in usual.items() if value is not None]
    whole = (*usual_parts, *parts)
    if whole:
        _check_parts(whole, network)
    return whole


def _usual_part(name: str, value: Any, network: nn.Cell) -> StepPart:
    """Return a part as it was given, or make it from a number or from MindSpore's counterpart."""
    known: dict[str, tuple[type[StepPart], Callable[[Any], StepPart]]] = {
        "loss_scale": (LossScale, StaticLossScale),
        "clipping": (GradientPart, Clipping),
        "ema": (EMA, partial(EMA, network)),
    }
    kind, of_number = known[name]
    if isinstance(value, kind):
        return value
    try:
        if isinstance(value, Real) and not isinstance(value, bool):
            return of_number(value)
        if kind is LossScale and type(value) in _LOSS_SCALES:
            return _LOSS_SCALES[type(value)](value)
    except ConfigError as error:  # it names the argument of the part, not of the step
        raise ConfigError(f"{name}: {error}") from None
    of_mindspore = ", a scaler or a loss-scale manager of mindspore.amp" if kind is LossScale else ""
    raise ConfigError(
        f"{name} is {shown(value)}; give a number{of_mindspore}, or dimred's part of that name", argument=name
    )


def _static_scaler(scaler: amp.StaticLossScaler) -> LossScale:
    return StaticLossScale(float(scaler.scale_value.asnumpy()))


def _dynamic_scaler(scaler: amp.DynamicLossScaler) -> LossScale:
    return _dynamic(float(scaler.scale_value.asnumpy()), scaler.scale_factor, scaler.scale_window)


def _fixed_manager(manager: amp.FixedLossScaleManager) -> LossScale:
    return StaticLossScale(manager.get_loss_scale(), manager.get_drop_overflow_update())


def _dynamic_manager(manager: amp.DynamicLossScaleManager) -> LossScale:
    return _dynamic(manager.get_loss_scale(), manager.scale_factor, manager.scale_window)


def _dynamic(scale: float, factor: float, window: int) -> LossScale:
    return DynamicLossScale(scale, float(factor), window, largest=_LARGEST_SCALE)


_LOSS_SCALES: dict[type, Callable[[Any], LossScale]] = {
    amp.StaticLossScaler: _static_scaler,
    amp.DynamicLossScaler: _dynamic_scaler,
    amp.FixedLossScaleManager: _fixed_manager,
    amp.DynamicLossScaleManager: _dynamic_manager,
}
"""MindSpore's loss scales, each with the function that makes ours from it."""


def _check_parts(parts: Sequence[StepPart], network: nn.Cell) -> None:
    """Check that a step on this network can have these parts."""
    known = set[str]()
    of_network = {id(parameter) for parameter in network.get_parameters()}
    for part in parts:
        if not isinstance(part, LossScale | GradientPart | WeightsPart) or not part.name:
            raise ConfigError(
                f"parts has {shown(part)}; each must be dimred.Clipping, EMA, StaticLossScale or DynamicLossScale, or "
                "a GradientPart or WeightsPart of your own with a name",
                argument="parts",
            )
        if part.name in known:
            raise ConfigError(f"parts has two named {part.name!r}; give one", argument="parts")
        known.add(part.name)
        for value in part.values if isinstance(part, WeightsPart) else ():
            if id(value) not in of_network:
                raise ConfigError(
                    f"{part.name} follows {value.name!r}, which is not in this network; make the part for this network"
                )
        for parameter in part.get_parameters():
            if id(parameter) not in of_network and not parameter.name.startswith(f"{part.name}."):
                raise ConfigError(
                    f"the part {part.name!r} has a parameter named {parameter.name!r}; a state tells parts apart by "
                    f"these names: begin it with '{part.name}.'"
                )
