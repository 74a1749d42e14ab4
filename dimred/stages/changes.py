"""Which changes of its configuration a run accepts on the way."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dimred.config import unknown_key
from dimred.errors import ConfigError, shown
from dimred.stages.states import VAL_LOSSES

_ABSENT = object()  # stands for a key that only one side has


def refuse_changes(before: Mapping[str, Any], now: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Check that two configurations differ only in the keys that are allowed to differ.

    A section against null, an empty mapping against a filled one, and a key that only one side has are differences,
    in both directions.

    Args:
        before: nested values that the run began with.
        now: nested values that it is to go on with.
        allowed: keys that may differ, such as ``epochs``, ``data.batch_size``, or a whole section such as ``schedule``.

    Raises:
        ConfigError: there are other differences, all of which are listed; or ``allowed`` has an unknown key.
    """
    before, now = json.loads(json.dumps(before)), json.loads(json.dumps(now))  # tuples become lists, as in a file
    keys = [*_keys(now), *_keys(before)]
    for key in allowed:
        if key not in keys:
            raise ConfigError(f"--allow-change has an {unknown_key(key, keys)}")
    sections = tuple(f"{key}." for key in allowed)
    differences = [
        one for one in _differences(before, now) if one[0] not in allowed and not one[0].startswith(sections)
    ]
    if differences:
        lines = "".join(f"\n  {key}: {_text(old)} -> {_text(new)}" for key, old, new in differences)
        accept = " ".join(f"--allow-change {key}" for key, _, _ in differences)
        raise ConfigError(
            f"the run was begun with other values:{lines}\ngive the values it was begun with, or accept the new ones "
            f"with {accept}"
        )


def refuse_another_val(before: Mapping[str, Any], now: Mapping[str, Any], arrays: Iterable[str]) -> None:
    """Refuse any change of ``val`` if a state has losses on the old one, to be compared with new ones.

    Args:
        before, now: identities of the run, with the splits under ``DATA``.
        arrays: names of the state's arrays.

    Raises:
        ConfigError: the split has changed.
    """
    was, now_is = (identity["DATA"].get("val") for identity in (before, now))
    if was != now_is and any(name.startswith(VAL_LOSSES) for name in arrays):
        raise ConfigError(
            f"DATA.val was {was}, and is {now_is}; it can't change on the way, because the run compares what it "
            "measured there sample by sample. Give the split it was begun with, or begin in a new folder"
        )


def _differences(before: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, old, new) of the innermost differences; a section against anything else is one difference."""
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
    if value is _ABSENT:
        return "absent"
    return "null" if value is None else shown(value)
