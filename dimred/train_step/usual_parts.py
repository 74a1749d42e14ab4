"""The parts of a step as a user may give them: ours, a plain number, or a scaler of ``mindspore.amp``."""

from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import Any

from mindspore import amp, nn

from dimred.errors import ConfigError, check_type, shown
from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale, StaticLossScale
from dimred.train_step.part import GradientPart, LossScale, StepPart, check_parts

_LARGEST_SCALE = 2.0**125  # for a growing scale of MindSpore's, which has no upper bound


def collect_parts(
    network: nn.Cell, *, loss_scale: Any, clipping: Any, ema: Any, parts: Sequence[StepPart]
) -> tuple[StepPart, ...]:
    """Collect the parts of a step, each made from what the user gave for it, and check them together.

    Args:
        network: network and loss in one cell.
        loss_scale: a ``LossScale``; a number, for a static one; ``StaticLossScaler`` or ``DynamicLossScaler`` of
            ``mindspore.amp``, whose settings and present scale are taken; or None.
        clipping: a ``GradientPart`` such as ``Clipping``; a number, its norm; or None.
        ema: ``EMA`` of the network; a number, its decay, with the ramp; or None.
        parts: further parts, see ``StepPart``.

    Raises:
        ConfigError: a part is none of these, a number is outside its range, or ``check_parts`` refuses the parts.
    """
    check_type("network", network, nn.Cell, "a cell of the network and its loss, such as nn.WithLossCell")
    check_type("parts", parts, (list, tuple), "a list of parts of your own, see dimred/train_step/README.md")
    given = (
        _part("loss_scale", loss_scale, LossScale, StaticLossScale),
        _part("clipping", clipping, GradientPart, Clipping),
        _part("ema", ema, EMA, partial(EMA, network)),
    )
    whole = (*(part for part in given if part is not None), *parts)
    check_parts(whole, network)
    return whole


def _part(name: str, value: Any, kind: type[StepPart], of_number: Callable[[Any], StepPart]) -> StepPart | None:
    """Return a part as it was given, or make it from a number or from MindSpore's."""
    if value is None or isinstance(value, kind):
        return value
    try:
        if isinstance(value, Real) and not isinstance(value, bool):
            return of_number(value)
        if kind is LossScale and isinstance(value, amp.StaticLossScaler):
            return of_number(float(value.scale_value.asnumpy()))
        if kind is LossScale and isinstance(value, amp.DynamicLossScaler):
            first, factor = float(value.scale_value.asnumpy()), float(value.scale_factor)
            return DynamicLossScale(first, factor, value.scale_window, largest=_LARGEST_SCALE)
    except ConfigError as error:  # it names the argument of the part
        raise ConfigError(f"{name}: {error}") from None
    of_mindspore = ", a scaler of mindspore.amp" if kind is LossScale else ""
    raise ConfigError(f"{name} is {shown(value)}; give a number{of_mindspore}, or dimred's part of that name")
