"""Make an optimizer by its name, with weight-decay groups."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from typing import Any

from mindspore import Parameter, nn

from dimred.errors import ConfigError
from dimred.train_step.network_checks import check_weight_names

# Name -> its options other than rates and weight decay.
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "momentum": ("momentum",),  # its use_nesterov does nothing on CPU; sgd has one that works
    "sgd": ("momentum", "nesterov"),
    "adamw": ("beta1", "beta2", "eps"),
    "schedule_free": ("beta",),
}


def decays(parameter: Parameter, no_decay: Sequence[str]) -> bool:
    """Return whether weight decay applies to a parameter: its name matches none of the patterns in ``no_decay``."""
    return not any(fnmatch(parameter.name, pattern) for pattern in no_decay)


def decay_groups(parameters: Sequence[Parameter], weight_decay: float, no_decay: Sequence[str]) -> list[dict[str, Any]]:
    """Make the parameter groups of a MindSpore optimizer: those with decay, those without, and the original order.

    Args:
        parameters: the parameters, in the order that the optimizer's ``parameters`` will have.
        weight_decay: the decay of the group with decay.
        no_decay: name patterns of the parameters without decay, see ``decays``.

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
    """Make an optimizer over the parameters, with weight decay on those that decay.

    ``momentum``       v <- momentum v + g + decay w;  w <- w - rate v
    ``sgd``            the same, but momentum is 0 by default; with nesterov w <- w - rate (g + decay w + momentum v)
    ``adamw``          ``AdamW``
    ``schedule_free``  ``ScheduleFree``

    Args:
        name: ``momentum``, ``sgd``, ``adamw``, ``schedule_free``; or of ``factory``, for the errors.
        parameters: the trainable parameters.
        rates: the learning rate, or a sequence with one for each update.
        weight_decay: weight decay of the parameters that decay, 0 <= weight_decay < 1.
        no_decay: name patterns of the parameters that don't decay, such as ``*bias``.
        factory: makes any other optimizer from the parameter groups and the rates; it has no options.
        options: ``momentum`` for ``momentum`` (0.9 by default) and ``sgd``; ``nesterov`` for ``sgd``; ``beta1``,
            ``beta2`` and ``eps`` for ``adamw``; ``beta`` for ``schedule_free``. None stands for the default.

    Raises:
        ConfigError: the optimizer does not have an option that is set; ``nesterov`` is true but the momentum is 0; a
            parameter is named like one of an optimizer's own; or the factory can't be used, see
            ``make_own_optimizer``.
    """
    settings = {option: value for option, value in options.items() if value is not None}
    if settings:
        _check_options(name, settings, OPTIMIZERS[name] if factory is None else ())
    check_weight_names(parameters)
    groups = decay_groups(parameters, weight_decay, no_decay)
    rates = rates if isinstance(rates, float | int) else [float(rate) for rate in rates]
    if factory is not None:
        from dimred.train_step.own_optimizer import make_own_optimizer

        return make_own_optimizer(name, factory, groups, parameters, rates)
    return _kind(name)(groups, rates, **settings)


def _kind(name: str) -> Callable[..., nn.Optimizer]:
    if name == "adamw":
        from dimred.train_step.adamw import AdamW

        return AdamW
    if name == "schedule_free":
        from dimred.train_step.schedule_free import ScheduleFree

        return ScheduleFree
    return nn.SGD if name == "sgd" else _momentum


def _momentum(groups: list[dict[str, Any]], rates: float | list[float], momentum: float = 0.9) -> nn.Optimizer:
    return nn.Momentum(groups, rates, momentum)


def _check_options(name: str, settings: dict[str, float | bool], options: Sequence[str]) -> None:
    """Check that an optimizer has the options that are set."""
    for option in settings:
        if option not in options:
            has = "it has " + ", ".join(options) if options else "set it in the factory"
            raise ConfigError(f"optimizer.{option} is not an option of {name}; {has}: set it to null")
    if settings.get("nesterov") and not settings.get("momentum"):
        raise ConfigError("optimizer.nesterov is true, which needs an optimizer.momentum above 0")
