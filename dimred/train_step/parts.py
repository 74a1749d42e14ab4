"""The optional parts of a step, as a user may give them: ours, MindSpore's own, or a plain number."""

from numbers import Real
from typing import Any, NamedTuple

from mindspore import amp, nn

from dimred.errors import ConfigError, check_type, shown
from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale, StaticLossScale

_LARGEST_SCALE = 2.0**125  # the largest loss scale that a growing one of MindSpore may reach here


class Parts(NamedTuple):
    """The parts of a step as its cells use them; None for a part that is off."""

    loss_scale: StaticLossScale | None
    clipping: nn.Cell | None
    ema: EMA | None


def make_parts(network: nn.Cell, loss_scale: Any, clipping: Any, ema: Any) -> Parts:
    """Convert what a user gave for the optional parts of a step to the cells that the step uses.

    Args:
        network: network and loss in one cell.
        loss_scale: ``StaticLossScale`` or ``DynamicLossScale``; a number, for a static one; a scaler of
            ``mindspore.amp`` or a loss scale manager, whose settings and present scale are taken; or None.
        clipping: ``Clipping``, or a cell with the same inputs and outputs; a number, its norm; or None.
        ema: ``EMA`` of the network; a number, its decay, with the ramp; or None.

    Returns:
        The three parts, each as it was given or made from its number or from MindSpore's.

    Raises:
        ConfigError: a part is none of these, a number is outside its range, or the average is of another network.
    """
    check_type("network", network, nn.Cell, "a cell of the network and its loss, such as nn.WithLossCell")
    if _is_number(clipping):
        clipping = _named("clipping", Clipping, clipping)
    check_type("clipping", clipping, (nn.Cell, type(None)), "a number, the largest global norm; or dimred.Clipping")
    if _is_number(ema):
        ema = _named("ema", EMA, network, ema)
    check_type("ema", ema, (EMA, type(None)), "a number, the decay; or dimred.EMA of the network")
    if ema is not None:
        parameter_ids = {id(parameter) for parameter in network.get_parameters()}
        for value in ema.values:
            if id(value) not in parameter_ids:
                raise ConfigError(f"ema averages {value.name!r}, which is not of this network; give an EMA of it")
    return Parts(_make_loss_scale(loss_scale), clipping, ema)


def _make_loss_scale(value: Any) -> StaticLossScale | None:
    if value is None or isinstance(value, StaticLossScale):
        return value
    if _is_number(value):
        return _named("loss_scale", StaticLossScale, value)
    if isinstance(value, amp.StaticLossScaler):
        return _named("loss_scale", StaticLossScale, float(value.scale_value.asnumpy()))
    if isinstance(value, amp.FixedLossScaleManager):
        drops = bool(value.get_drop_overflow_update())
        return _named("loss_scale", StaticLossScale, float(value.get_loss_scale()), drops)
    if isinstance(value, amp.DynamicLossScaler):
        first = float(value.scale_value.asnumpy())
        return _growing(first, value.scale_factor, value.scale_window)
    if isinstance(value, amp.DynamicLossScaleManager):
        return _growing(float(value.get_loss_scale()), value.scale_factor, value.scale_window)
    raise ConfigError(
        f"loss_scale is {shown(value)}; it must be a number, dimred.StaticLossScale or DynamicLossScale, or one of "
        "MindSpore's: amp.StaticLossScaler, DynamicLossScaler, FixedLossScaleManager or DynamicLossScaleManager"
    )


def _growing(first: float, factor: int, window: int) -> StaticLossScale:
    """Make a dynamic scale with the settings of MindSpore's, which has no upper bound and a lower one of 1."""
    return _named("loss_scale", DynamicLossScale, first, float(factor), window, largest=_LARGEST_SCALE)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _named(name: str, part: Any, *arguments: Any, **options: Any) -> Any:
    """Make a part; if a setting is not allowed, name the argument of the step too."""
    try:
        return part(*arguments, **options)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
