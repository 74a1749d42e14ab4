"""Make an optimizer from its name, with weight-decay groups."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from functools import partial
from typing import Any

import numpy as np
from mindspore import Parameter, nn

from dimred.errors import ConfigError
from dimred.train_step.adamw import AdamW
from dimred.train_step.network_checks import check_weight_names
from dimred.train_step.optimizer_state import is_rate
from dimred.train_step.schedule_free import ScheduleFree

# Name -> its options other than rates and weight decay.
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "momentum": ("momentum",),  # its use_nesterov does nothing on CPU; sgd's works
    "sgd": ("momentum", "nesterov"),
    "adamw": ("beta1", "beta2", "eps"),
    "schedule_free": ("beta",),
}
_KINDS: dict[str, Callable[..., nn.Optimizer]] = {
    "momentum": partial(nn.Momentum, momentum=0.9),
    "sgd": nn.SGD,
    "adamw": AdamW,
    "schedule_free": ScheduleFree,
}


def decays(parameter: Parameter, no_decay: Sequence[str]) -> bool:
    """Return whether weight decay applies to a parameter: whether its name matches no pattern in ``no_decay``."""
    return not any(fnmatch(parameter.name, pattern) for pattern in no_decay)


def decay_groups(parameters: Sequence[Parameter], weight_decay: float, no_decay: Sequence[str]) -> list[dict[str, Any]]:
    """Make the parameter groups for a MindSpore optimizer: one with decay, one without, and the original order.

    Args:
        parameters: the parameters, in the order that the optimizer's ``parameters`` will have.
        weight_decay: the decay for the group with decay.
        no_decay: name patterns for the parameters without decay; see ``decays``.

    Returns:
        The groups, as ``nn.Optimizer`` takes them; a group without parameters is left out.
    """
    with_decay = [parameter for parameter in parameters if decays(parameter, no_decay)]
    without_decay = [parameter for parameter in parameters if not decays(parameter, no_decay)]
    groups = [{"params": with_decay, "weight_decay": weight_decay}, {"params": without_decay, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]] + [{"order_params": list(parameters)}]


def make_optimizer(
    name: str,
    parameters: Sequence[Parameter],
    rates: float | Sequence[float],
    *,
    weight_decay: float = 0.0,
    no_decay: Sequence[str] = (),
    factory: Callable[..., Any] | None = None,
    **options: float | bool | None,
) -> nn.Optimizer:
    """Make an optimizer for the parameters, with weight decay where ``no_decay`` does not rule it out.

    ``momentum``       v <- momentum v + g + decay w;  w <- w - rate v
    ``sgd``            the same, but momentum is 0 by default; with nesterov w <- w - rate (g + decay w + momentum v)
    ``adamw``          ``AdamW``
    ``schedule_free``  ``ScheduleFree``

    Args:
        name: ``momentum``, ``sgd``, ``adamw``, ``schedule_free``; or the factory's name, for errors.
        parameters: the trainable parameters.
        rates: the learning rate, or a sequence with one for each update.
        weight_decay: weight decay for the parameters that decay, 0 <= weight_decay < 1.
        no_decay: name patterns for the parameters that don't decay, such as ``*bias``.
        factory: makes any other optimizer from the parameter groups and the rates; it takes no options.
        options: ``momentum`` for ``momentum`` (0.9 by default) and ``sgd``; ``nesterov`` for ``sgd``; ``beta1``,
            ``beta2`` and ``eps`` for ``adamw``; ``beta`` for ``schedule_free``. None stands for the default.

    Raises:
        ConfigError: an option is set that the optimizer does not have; ``nesterov`` is true but the momentum is 0; a
            parameter is named like one of an optimizer's own; or ``factory`` fails, or makes something other than an
            optimizer for these parameters with these rates.
    """
    settings = {option: value for option, value in options.items() if value is not None}
    if settings:
        _check_options(name, settings, OPTIMIZERS[name] if factory is None else ())
    check_weight_names(parameters)
    groups = decay_groups(parameters, weight_decay, no_decay)
    rates = rates if isinstance(rates, float | int) else [float(rate) for rate in rates]
    if factory is not None:
        return _own_optimizer(name, factory, groups, parameters, rates)
    return _KINDS[name](groups, rates, **settings)


def _check_options(name: str, settings: dict[str, float | bool], options: Sequence[str]) -> None:
    """Check that the optimizer has every option that is set."""
    for option in settings:
        if option not in options:
            message = f"optimizer.{option} is not an option of {name}"
            if not options:
                raise ConfigError(f"{message}; set it in the factory, and to null here")
            raise ConfigError(f"{message}, which has {', '.join(options)}; set it to null")
    if settings.get("nesterov") and not settings.get("momentum"):
        raise ConfigError("optimizer.nesterov is true, which needs an optimizer.momentum above 0")


def _own_optimizer(
    name: str,
    factory: Callable[..., Any],
    groups: list[dict[str, Any]],
    parameters: Sequence[Parameter],
    rates: float | list[float],
) -> nn.Optimizer:
    """Make an optimizer with the user's factory, and check that it can be used."""
    try:
        optimizer = factory(groups, rates)
    except Exception as error:
        raise ConfigError(
            f"optimizer.name is {name!r}, which failed with {type(error).__name__}: {error}. It is called with the "
            "parameter groups and the learning rates, a list with one for each update"
        ) from error
    if not isinstance(optimizer, nn.Optimizer):
        raise ConfigError(
            f"optimizer.name is {name!r}, which returned {type(optimizer).__name__}; it must return an nn.Optimizer"
        )
    if {id(weight) for weight in optimizer.parameters} != {id(weight) for weight in parameters}:
        raise ConfigError(
            f"optimizer.name is {name!r}, which returned an optimizer for {len(optimizer.parameters)} parameters; it "
            f"must be for the {len(parameters)} in the groups that it is called with"
        )
    n_rates = {parameter.size for parameter in optimizer.get_parameters() if is_rate(parameter)}
    if n_rates != {np.size(rates)}:
        raise ConfigError(
            f"optimizer.name is {name!r}, which returned an optimizer without the {np.size(rates)} learning rates that "
            "it is called with, one for each update; give them to the nn.Optimizer as its learning_rate"
        )
    return optimizer
