"""Numbers that users give, checked where they are used."""

import math
from typing import Any

import numpy as np

from dimred.errors import ConfigError


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    whole: bool = False,
    usual: str = "",
) -> None:
    """Check that an option is a finite number in its range.

    Args:
        name: of the option, as the user typed it.
        value: what came.
        above, at_least, below: the range.
        whole: whether it must be a whole number.
        usual: said at the end of the message, such as ``0.9 is usual``.

    Raises:
        ConfigError: it is not; the message says what is allowed.
    """
    kind = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    if (
        isinstance(value, kind)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and (above is None or value > above)
        and (at_least is None or value >= at_least)
        and (below is None or value < below)
    ):
        return
    limits = [("above", above), ("at least", at_least), ("below", below)]
    allowed = " and ".join(f"{word} {limit}" for word, limit in limits if limit is not None)
    number = "a whole number" if whole else "a number"
    raise ConfigError(f"{name} is {value!r}; it must be {number} {allowed}{f' ({usual})' if usual else ''}")
