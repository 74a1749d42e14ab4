"""What differs between the run that was begun and the one that is to go on."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dimred.errors import ConfigError, shown

__all__ = ["refuse_changes"]


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Refuse to go on where something changed that was not allowed to.

    Args:
        before, now: nested values by key; a key that ``before`` does not know yet counts as unchanged.
        allowed: keys that may differ, such as ``epochs`` or ``data.batch_size``.

    Raises:
        ConfigError: shows every difference; or ``allowed`` has a key that does not exist.
    """
    old, new = dict(_flat(before)), dict(_flat(now))
    for key in allowed:
        if key not in new:
            nearest = difflib.get_close_matches(key[:80], list(new), n=1, cutoff=0.0)
            raise ConfigError(f"--allow-change is {shown(key)}, which is no key; did you mean {nearest[0]!r}?")
    changed = [key for key in old if key in new and old[key] != new[key] and key not in allowed]
    if changed:
        lines = [f"  {key}: {shown(old[key])} -> {shown(new[key])}" for key in changed]
        accept = " ".join(f"--allow-change {key}" for key in changed)
        raise ConfigError(
            "the run was begun with other values:\n"
            + "\n".join(lines)
            + f"\ngive the values it was begun with, or accept the new ones with {accept}"
        )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
