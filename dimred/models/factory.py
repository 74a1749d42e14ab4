"""Make a user's own network, or a cell such as a loss, from the name of its factory, ``package.module:factory``."""

import inspect
from typing import Any

from mindspore import nn

from dimred.errors import ConfigError
from dimred.factories import call_factory, load_factory

_CLASSES = ("n_classes", "num_classes", "class_num", "num_labels")  # parameters for the number of classes
CLASSES_REMEDY = f"give the number of classes to a parameter called {', '.join(_CLASSES[:-1])} or {_CLASSES[-1]}"
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def make_cell(name: str, *arguments: Any, key: str = "model", **options: Any) -> nn.Cell:
    """Make a network, or a different cell such as a loss, by calling its factory.

    Args:
        name, arguments, key, options: as for ``call_factory``.

    Raises:
        ConfigError: from ``call_factory``, or the function does not return a cell.
    """
    cell = call_factory(name, *arguments, key=key, **options)
    if not isinstance(cell, nn.Cell):
        raise ConfigError(f"{key} is {name!r}, which returned {type(cell).__name__}; it must return an nn.Cell")
    return cell


def make_network(name: str, n_classes: int) -> nn.Cell:
    """Make a network by calling its factory, with the number of classes if it has a parameter for that.

    The parameter is called ``n_classes``, ``num_classes``, ``class_num`` or ``num_labels``. No other parameter gets a
    value, because it may mean anything: mindcv's factories have ``pretrained`` first.

    Args:
        name: the factory, ``package.module:factory``.
        n_classes: the number of classes.

    Raises:
        ConfigError: from ``make_cell``, or the function needs other arguments.
    """
    try:
        parameters = list(inspect.signature(load_factory(name)).parameters.values())
    except (TypeError, ValueError):  # the function is not written in Python
        return make_cell(name)
    by_name = [parameter for parameter in parameters if parameter.kind in _BY_NAME]
    classes: dict[str, Any] = {parameter.name: n_classes for parameter in by_name if parameter.name in _CLASSES}
    needed = [parameter.name for parameter in by_name if parameter.default is parameter.empty]
    without_value = [name for name in needed if name not in classes]
    if without_value:
        raise ConfigError(
            f"model is {name!r}, which needs a value for {', '.join(without_value)}; {CLASSES_REMEDY}", argument="model"
        )
    return make_cell(name, **classes)
