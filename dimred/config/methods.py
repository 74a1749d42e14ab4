"""The base of the sections that belong to a method of stage 2."""

import re
from typing import ClassVar

from pydantic import ValidationError

from dimred.config.base import Strict
from dimred.errors import ConfigError
from dimred.factories import load_factory


class MethodConfig(Strict):
    """The keys of a stage-2 method, and what must be known about it where MindSpore is not imported.

    The section has the method's name. Every key needs a default. What a method does is in its ``Plan``, and what a
    report says about it in its ``MethodReport``; both are named here and imported when they are needed.
    """

    plan: ClassVar[str]
    """Its ``Plan`` (dimred.stages.method), as package.module:Name."""
    report: ClassVar[str] = "dimred.report.method_report:MethodReport"
    """Its ``MethodReport`` (dimred.report.method_report), as package.module:Name."""
    default_epochs: ClassVar[int | str] = 1
    """The value of ``epochs`` if it is left out; 0 for a method that trains nothing."""
    first_keys: ClassVar[tuple[str, ...]] = ()
    """The keys that a user sets first; ``dimred init`` writes them."""

    @property
    def uses_val(self) -> bool:
        """Return whether the split ``val`` chooses the network that is kept; by default not."""
        return False

    @property
    def needs_exact_float32(self) -> bool:
        """Return whether float32 must be computed exactly, and not in a shorter type such as TF32; by default not."""
        return False

    @property
    def fixed_keys(self) -> frozenset[str]:
        """Return stage 2 keys that a resume may change with other methods, but not with this one; by default none."""
        return frozenset()


def section_name(method: str) -> str:
    """Return the name of a method's section: the method's own name, or the last part of ``package.module:Name``."""
    return re.split("[:.]", method)[-1]


def own_method(method: str) -> type[MethodConfig]:
    """Import the section of a user's own method.

    Args:
        method: its name, ``package.module:Name``.

    Raises:
        ConfigError: it can't be imported, is no ``MethodConfig``, or has a key without a default.
    """
    section = load_factory(method, "method")
    if not (isinstance(section, type) and issubclass(section, MethodConfig)):
        raise ConfigError(f"method is {method!r}, which is not a class derived from dimred.config.MethodConfig")
    try:
        section()
    except ValidationError as error:
        key = error.errors()[0]["loc"][0]
        raise ConfigError(f"method is {method!r}, whose key {key!r} has no valid default; give it one") from None
    return section
