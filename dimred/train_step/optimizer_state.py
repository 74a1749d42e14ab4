"""Read an optimizer's state: its parameters, its rate, and the weights to evaluate."""

import re
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

from mindspore import Parameter, nn

from dimred.errors import ConfigError

UPDATES = "global_step"  # the count of updates in every MindSpore optimizer's state; snapshots don't hold it
RATES_SQUARED = "schedule_free.rates_squared"  # only in the state of ``ScheduleFree``


def is_rate(parameter: Parameter) -> bool:
    """Return whether an optimizer's parameter holds learning rates: its own, or a parameter group's."""
    return re.fullmatch("learning_rate(_group_[0-9]+)?", parameter.name) is not None


def has_averaged_point(optimizer: nn.Cell | None) -> bool:
    """Return whether the optimizer keeps the weights to evaluate outside the network, as ``ScheduleFree`` does."""
    return hasattr(optimizer, "in_place")


def weights_to_use(optimizer: nn.Cell | None) -> AbstractContextManager[None]:
    """Put the weights that are evaluated and kept into the network inside the block, if they aren't there already."""
    in_place: Callable[[], AbstractContextManager[None]] = getattr(optimizer, "in_place", nullcontext)
    return in_place()


def state_parameters(optimizer: nn.Cell) -> list[Parameter]:
    """Return an optimizer's state, such as momenta and the update count, without weights and rates."""
    weights = {id(weight) for weight in optimizer.parameters}
    return [
        parameter for parameter in optimizer.get_parameters() if id(parameter) not in weights and not is_rate(parameter)
    ]


def last_rate(optimizer: nn.Cell) -> float | None:
    """Return the rate of the optimizer's latest update, in its first group; before any update, the first rate.

    Return None for an optimizer's stand-in, a cell without rates.
    """
    rate = next(filter(is_rate, optimizer.get_parameters()), None)
    if rate is None:
        return None
    rates = rate.asnumpy().reshape(-1)
    n_updates = int(optimizer.global_step.asnumpy().item()) if len(rates) > 1 else 1
    return float(rates[min(max(n_updates, 1), len(rates)) - 1])


def check_no_gradient_point(names: Collection[str], title: str) -> None:
    """Refuse a full checkpoint of schedule-free training, which lacks the averaged weights.

    Args:
        names: names of the checkpoint's arrays.
        title: what the error calls the checkpoint.

    Raises:
        ConfigError: it is such a checkpoint.
    """
    if RATES_SQUARED in names:
        raise ConfigError(
            f"{title} has the point at which schedule-free training takes its gradients, not the averaged "
            "weights, which are the trained network; name the *-final.ckpt beside it"
        )
