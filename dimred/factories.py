"""Find a user's own code from its name, ``package.module:factory``; this needs no MindSpore."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dimred.errors import ConfigError, shown


def load_factory(name: str, key: str = "model") -> Callable[..., Any]:
    """Import the function that ``package.module:factory`` names; the working folder is searched last.

    Args:
        name: the function's name.
        key: the configuration's key that holds the name, for the error.

    Raises:
        ConfigError: the module can't be imported, or the function is missing from it or can't be called.
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # a user's random.py must not hide Python's
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if module_name.endswith(".py"):
            without_ending = f"{module_name.removesuffix('.py')}:{attribute}"
            raise ConfigError(f"{key} is {name!r}; name the module without its ending: {without_ending}") from None
        raise ConfigError(
            f"{key} is {name!r}, but {module_name!r} can't be imported ({type(error).__name__}: {error}); run from the "
            "folder that holds it, or put that folder on PYTHONPATH"
        ) from error
    factory: Any = module
    for part in attribute.split("."):
        if not hasattr(factory, part):
            where = getattr(module, "__file__", None) or "built into Python"
            raise ConfigError(f"{key} is {name!r}, but {module_name!r} has no {attribute!r}; the module is {where}")
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
