"""Make and check optimizers, with weight-decay groups, and read their state."""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatch
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn

from dimred.errors import ConfigError, shown
from dimred.train_step.adamw import AdamW
from dimred.train_step.schedule_free import RATES_SQUARED, ScheduleFree

UPDATES = "global_step"  # the count of updates in the state of every MindSpore optimizer; snapshots don't hold it
# Parameters that the optimizers of MindSpore and mindcv have beside one for each weight; a test holds the list.
_OF_OPTIMIZERS = (
    UPDATES, "learning_rate", "momentum", "beta1_power", "beta2_power", "mu_schedule", "afactor_step", RATES_SQUARED,
)  # fmt: skip


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


# Name -> the cell, and its options other than rates and weight decay, with their defaults.
OPTIMIZERS: dict[str, tuple[Callable[..., nn.Optimizer], dict[str, Any]]] = {
    "momentum": (nn.Momentum, {"momentum": 0.9}),  # its use_nesterov does nothing on CPU; sgd has one that works
    "sgd": (nn.SGD, {"momentum": 0.0, "nesterov": False}),
    "adamw": (AdamW, {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}),
    "schedule_free": (ScheduleFree, {"beta": 0.9}),
}


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
        options: ``momentum`` for ``momentum`` and ``sgd``; ``nesterov`` for ``sgd``; ``beta1``, ``beta2`` and ``eps``
            for ``adamw``; ``beta`` for ``schedule_free``. None stands for the default.

    Returns:
        The optimizer.

    Raises:
        ConfigError: the optimizer does not have an option that is set; ``nesterov`` is true but the momentum is 0; a
            parameter is named like one of an optimizer's own; or ``factory`` fails, or makes something that is not an
            optimizer of these parameters with these rates.
    """
    cell, defaults = OPTIMIZERS[name] if factory is None else (factory, {})
    settings = dict(defaults)
    for option, value in options.items():
        if value is None:
            continue
        if option not in defaults:
            has = "it has " + ", ".join(defaults) if defaults else "set it in the factory"
            raise ConfigError(f"optimizer.{option} is not an option of {name}; {has}: set it to null")
        settings[option] = value
    if settings.get("nesterov") and not settings["momentum"]:
        raise ConfigError("optimizer.nesterov is true, which needs an optimizer.momentum above 0")
    _check_names(parameters)
    groups = decay_groups(parameters, weight_decay, no_decay)
    rates = rates if isinstance(rates, float | int) else [float(rate) for rate in rates]
    if factory is None:
        return cell(groups, rates, **settings)
    try:
        optimizer = factory(groups, rates)
    except Exception as error:
        raise ConfigError(
            f"optimizer.name is {name!r}, which failed with {type(error).__name__}: {error}. It is called with the "
            "parameter groups and the learning rates, a list with one for each update"
        ) from error
    _check_factory_optimizer(name, optimizer, parameters, rates)
    return optimizer


def _check_names(weights: Sequence[Parameter]) -> None:
    """Check that no weight is named like a parameter that an optimizer looks up by name, such as its rate."""
    for weight in weights:
        if weight.name in _OF_OPTIMIZERS:
            raise ConfigError(
                f"a weight of the network is named {weight.name!r}. MindSpore's optimizers have a parameter of that "
                "name, and would use the weight in its place; rename the weight"
            )


def _check_factory_optimizer(name: str, optimizer: Any, parameters: Sequence[Parameter], rates: Any) -> None:
    """Check that a user's own optimizer has all the parameters, and the schedule of rates."""
    start = f"optimizer.name is {name!r}, which returned "
    if not isinstance(optimizer, nn.Optimizer):
        raise ConfigError(f"{start}{type(optimizer).__name__}; it must return an nn.Optimizer")
    if {id(weight) for weight in optimizer.parameters} != {id(weight) for weight in parameters}:
        raise ConfigError(
            f"{start}an optimizer of {len(optimizer.parameters)} parameters; it must be one of the {len(parameters)} "
            "in the groups that it is called with"
        )
    n_rates = {parameter.size for parameter in optimizer.get_parameters() if is_rate(parameter)}
    if n_rates != {np.size(rates)}:
        raise ConfigError(
            f"{start}an optimizer without the {np.size(rates)} learning rates that it is called with, one for each "
            "update; give them to the nn.Optimizer as its learning_rate"
        )


def check_optimizer(optimizer: nn.Optimizer, trainable: Sequence[Parameter]) -> None:
    """Check that an optimizer can train a network.

    Args:
        optimizer: the optimizer, as the caller gave it.
        trainable: the network's trainable parameters.

    Raises:
        ConfigError: ``optimizer`` is not an optimizer, has a loss scale, or has a parameter that is not trainable in
            the network, not float32, or named like one of the optimizer's own.
    """
    if not isinstance(optimizer, nn.Optimizer):
        raise ConfigError(f"optimizer is {shown(optimizer)}; give one of mindspore.nn, over the trainable parameters")
    if optimizer.loss_scale != 1:
        raise ConfigError(
            f"optimizer has a loss_scale of {optimizer.loss_scale:g}, by which it would divide a gradient that the "
            "step has unscaled; make it without one, and give the loss scale to the step"
        )
    _check_names(optimizer.parameters)
    trainable_ids = {id(weight) for weight in trainable}
    for weight in optimizer.parameters:
        if id(weight) not in trainable_ids:
            raise ConfigError(
                f"optimizer has {weight.name!r}, which is not a trainable parameter of the network that the step "
                "trains; make it from network.trainable_params()"
            )
    check_float32(optimizer.parameters)


def check_float32(weights: Iterable[Parameter]) -> None:
    """Check that all weights are float32; ConfigError if one is not."""
    for weight in weights:
        if weight.dtype != ms.float32:
            raise ConfigError(
                f"the weight {weight.name!r} is {weight.dtype}; weights must be float32. To compute in half precision "
                "leave them so, and use mindspore.amp or cell.to_float(mindspore.float16)"
            )


def is_rate(parameter: Parameter) -> bool:
    """Return whether a parameter of an optimizer holds its learning rates, or those of a group with its own."""
    return re.fullmatch("learning_rate(_group_[0-9]+)?", parameter.name) is not None


def weights_to_use(optimizer: nn.Cell | None) -> AbstractContextManager[None]:
    """Put the weights to evaluate and keep into the network inside the block.

    For ``ScheduleFree`` they are its averaged point; for other optimizers, the network already has them.
    """
    return optimizer.in_place() if isinstance(optimizer, ScheduleFree) else nullcontext()


def state_parameters(optimizer: nn.Cell) -> list[Parameter]:
    """Return an optimizer's state, such as momenta and the count of updates, without weights and rates."""
    weights = {id(weight) for weight in optimizer.parameters}
    return [
        parameter for parameter in optimizer.get_parameters() if id(parameter) not in weights and not is_rate(parameter)
    ]


def last_rate(optimizer: nn.Cell) -> float | None:
    """Return the rate of the latest update of an optimizer, in its first group; before any, the first rate.

    Return None for a cell without rates, which stands in an optimizer's place.
    """
    rate = next(filter(is_rate, optimizer.get_parameters()), None)
    if rate is None:
        return None
    rates = rate.asnumpy().reshape(-1)
    n_updates = int(optimizer.global_step.asnumpy().item()) if len(rates) > 1 else 1
    return float(rates[min(max(n_updates, 1), len(rates)) - 1])
