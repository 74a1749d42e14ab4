"""Optimizers by name, over weight-decay groups."""

from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Parameter, nn

from dimred.errors import ConfigError, check_number
from dimred.train_step.decay_groups import NO_DECAY_PATTERNS, decay_groups
from dimred.train_step.lamb import Lamb

# Name -> the cell, and the options it has beside rates and weight decay, with their defaults.
_OPTIMIZERS: dict[str, tuple[Callable[..., nn.Optimizer], dict[str, Any]]] = {
    "momentum": (nn.Momentum, {"momentum": 0.9}),  # its use_nesterov does nothing on CPU; sgd has one that works
    "sgd": (nn.SGD, {"momentum": 0.0, "nesterov": False}),
    "adamw": (nn.AdamWeightDecay, {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6}),
    "lamb": (Lamb, {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6}),
}
OPTIMIZER_NAMES = tuple(_OPTIMIZERS)


def make_optimizer(
    name: str,
    parameters: Sequence[Parameter],
    rates: float | Sequence[float],
    *,
    weight_decay: float = 0.0,
    no_decay: Sequence[str] = NO_DECAY_PATTERNS,
    **options: float | bool | None,
) -> nn.Optimizer:
    """An optimizer over the parameters, with the decay on those that decay.

    ``momentum``  v <- momentum v + g + decay w;  w <- w - rate v
    ``sgd``       the same with momentum 0 by default; with nesterov w <- w - rate (g + decay w + momentum v)
    ``adamw``     MindSpore's ``nn.AdamWeightDecay``: decoupled decay, no bias correction
    ``lamb``      ``dimred.train_step.lamb.Lamb``

    Args:
        name: ``momentum``, ``sgd``, ``adamw``, ``lamb``.
        parameters: the trainable ones.
        rates: a number, or one for each update.
        weight_decay: of the parameters that decay, 0 <= weight_decay < 1.
        no_decay: patterns of the names of those that don't.
        options: ``momentum``; of ``sgd`` ``nesterov`` too; or ``beta1``, ``beta2`` and ``eps``. None stands for the
            default.

    Raises:
        ConfigError: an unknown name, an option that this optimizer does not have, or one outside its range.
    """
    if name not in _OPTIMIZERS:
        raise ConfigError(f"optimizer.name is {name!r}; allowed: {', '.join(OPTIMIZER_NAMES)}")
    cell, defaults = _OPTIMIZERS[name]
    chosen = dict(defaults)
    for option, value in options.items():
        if value is None:
            continue
        if option not in defaults:
            has = ", ".join(defaults)
            raise ConfigError(f"optimizer.{option} is not an option of {name}; it has {has}: set it to null")
        if not isinstance(value, bool):
            positive = option == "eps"
            check_number(
                f"optimizer.{option}",
                value,
                above=0 if positive else None,
                at_least=None if positive else 0,
                below=None if positive else 1,
            )
        chosen[option] = value
    if chosen.get("nesterov") and not chosen["momentum"]:
        raise ConfigError("optimizer.nesterov is true, which needs an optimizer.momentum above 0")
    check_number("optimizer.weight_decay", weight_decay, at_least=0, below=1, usual="0.0001 is usual, 0 for none")
    groups = decay_groups(parameters, weight_decay, no_decay)
    rates = rates if isinstance(rates, float | int) else [float(rate) for rate in rates]
    return cell(groups, rates, **chosen)
