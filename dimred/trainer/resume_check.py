"""Refuse to resume a run whose configuration changed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dimred.config import unknown_key
from dimred.errors import ConfigError, shown


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Refuse every difference that was not allowed, whatever its shape.

    A section against null, an empty mapping against a filled one, and a key that only one side has are differences,
    in both directions.

    Args:
        before: nested values that the run began with.
        now: nested values that it is to go on with.
        allowed: keys that may differ, such as ``epochs``, ``data.batch_size``, or a whole section such as ``schedule``.

    Raises:
        ConfigError: lists every difference; or ``allowed`` has a key that neither side has.
    """
    before, now = json.loads(json.dumps(before)), json.loads(json.dumps(now))  # tuples become lists, as in a file
    known = [*_keys(now), *_keys(before)]
    for key in allowed:
        if key not in known:
            raise ConfigError(f"--allow-change has an {unknown_key(key, known)}")
    sections = tuple(f"{key}." for key in allowed)
    changed = [one for one in _differences(before, now) if one[0] not in allowed and not one[0].startswith(sections)]
    if changed:
        lines = "".join(f"\n  {key}: {_text(old)} -> {_text(new)}" for key, old, new in changed)
        accept = " ".join(f"--allow-change {key}" for key, _, _ in changed)
        raise ConfigError(
            f"the run was begun with other values:{lines}\ngive the values it was begun with, or accept the new ones "
            f"with {accept}"
        )


def _differences(before: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key, old value, new value) of the innermost differences; a section against anything else is one of them."""
    if type(before) is type(now) and json.dumps(before, sort_keys=True) == json.dumps(now, sort_keys=True):
        return  # as JSON, because Python takes 1 for True
    if not (isinstance(before, Mapping) and isinstance(now, Mapping) and before and now):
        yield key, before, now
        return
    for name in dict.fromkeys([*before, *now]):
        yield from _differences(before.get(name, _ABSENT), now.get(name, _ABSENT), f"{key}.{name}".lstrip("."))


def _keys(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")


def _text(value: Any) -> str:
    return "null" if value is None else shown(value)
