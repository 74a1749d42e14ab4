"""Make a user's own optimizer, and check that it can be used."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, nn

from dimred.errors import ConfigError
from dimred.train_step.optimizer_state import is_rate


def make_own_optimizer(
    name: str,
    factory: Callable[..., Any],
    groups: list[dict[str, Any]],
    parameters: Sequence[Parameter],
    rates: float | list[float],
) -> nn.Optimizer:
    """Make an optimizer by a user's factory; the arguments are those of ``make_optimizer``, and its groups.

    Raises:
        ConfigError: ``factory`` fails, or makes something that is not an optimizer of these parameters with these
            rates.
    """
    start = f"optimizer.name is {name!r}, which "
    try:
        optimizer = factory(groups, rates)
    except Exception as error:
        raise ConfigError(
            f"{start}failed with {type(error).__name__}: {error}. It is called with the parameter groups and the "
            "learning rates, a list with one for each update"
        ) from error
    start += "returned "
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
    return optimizer
