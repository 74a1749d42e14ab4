"""Find a user's own network, data, loss, metric, optimizer or callback by its name, ``package.module:factory``."""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspore import nn

from dimred.errors import ConfigError, shown

_CLASSES = ("n_classes", "num_classes", "class_num", "num_labels")  # names of a factory's number of classes
CLASSES_REMEDY = f"give the number of classes to a parameter called {', '.join(_CLASSES[:-1])} or {_CLASSES[-1]}"
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def load_factory(name: str, key: str = "model") -> Callable[..., Any]:
    """Import the function that ``package.module:factory`` names; the working folder is searched too.

    Args:
        name: the function's name.
        key: the configuration's key that holds the name, for the error.

    Raises:
        ConfigError: the module can't be imported, or the function is missing there or can't be called.
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        factory = importlib.import_module(module_name)
    except Exception as error:
        if module_name.endswith(".py"):
            without_ending = f"{module_name.removesuffix('.py')}:{attribute}"
            raise ConfigError(f"{key} is {name!r}; name the module without its ending: {without_ending}") from None
        raise ConfigError(
            f"{key} is {name!r}, but {module_name!r} can't be imported ({type(error).__name__}: {error}); run from the "
            "folder that holds it, or put that folder on PYTHONPATH"
        ) from error
    for part in attribute.split("."):
        if not hasattr(factory, part):
            raise ConfigError(f"{key} is {name!r}, but {module_name!r} has no {attribute!r}")
        factory = getattr(factory, part)
    if not callable(factory):
        raise ConfigError(f"{key} is {name!r}, which is not a function: it is {shown(factory)}")
    return factory


def call_factory(name: str, *arguments: Any, key: str = "model", **options: Any) -> Any:
    """Call the function that ``package.module:factory`` names, and return its result.

    Args:
        name: the function's name.
        arguments, options: the arguments to call it with.
        key: the configuration's key that holds the name, for the error.

    Raises:
        ConfigError: as for ``load_factory``, or the function fails.
    """
    factory = load_factory(name, key)
    try:
        return factory(*arguments, **options)
    except Exception as error:
        raise ConfigError(f"{key} is {name!r}, which failed with {type(error).__name__}: {error}") from error


def make_cell(name: str, *arguments: Any, key: str = "model", **options: Any) -> nn.Cell:
    """Make a network, or a different cell such as a loss, by calling its factory.

    Args:
        name, arguments, key, options: as for ``call_factory``.

    Raises:
        ConfigError: as for ``call_factory``, or the function does not return a cell.
    """
    cell = call_factory(name, *arguments, key=key, **options)
    if not isinstance(cell, nn.Cell):
        raise ConfigError(f"{key} is {name!r}, which returned {type(cell).__name__}; it must return an nn.Cell")
    return cell


def make_network(name: str, n_classes: int) -> nn.Cell:
    """Make a network by calling its factory, with the number of classes if it has a parameter for that.

    The parameter is called ``n_classes``, ``num_classes``, ``class_num`` or ``num_labels``. No other one gets a value,
    because it may mean anything: the first of mindcv's factories is ``pretrained``.

    Args:
        name: the factory, ``package.module:factory``.
        n_classes: the number of classes.

    Raises:
        ConfigError: as for ``make_cell``, or the function needs other arguments.
    """
    try:
        parameters = list(inspect.signature(load_factory(name)).parameters.values())
    except (TypeError, ValueError):  # of a function that is not written in Python
        return make_cell(name)
    by_name = [one for one in parameters if one.kind in _BY_NAME]
    classes: dict[str, Any] = {one.name: n_classes for one in by_name if one.name in _CLASSES}
    without_value = [one.name for one in by_name if one.default is one.empty and one.name not in classes]
    if without_value:
        raise ConfigError(f"model is {name!r}, which needs a value for {', '.join(without_value)}; {CLASSES_REMEDY}")
    return make_cell(name, **classes)
