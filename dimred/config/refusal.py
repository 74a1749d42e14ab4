"""What pydantic refuses, in our own words: the key, its value, what is allowed."""

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from dimred.errors import ConfigError, shown

_LIMITS = {"gt": "above", "ge": "of at least", "lt": "below", "le": "at most"}


def refusal(
    model: type[BaseModel], values: Any, error: ValidationError, other_keys: Collection[str] = ()
) -> ConfigError:
    """Make an error with one line for each key.

    Args:
        model: that refused.
        values: what it was given.
        error: what it raised.
        other_keys: suggested in place of an unknown key, beside those of the model.
    """
    keys = [*_keys(model), *other_keys]
    return ConfigError("\n".join(dict.fromkeys(_line(model, keys, values, problem) for problem in error.errors())))


def _line(model: type[BaseModel], keys: Sequence[str], values: Any, problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        typed = ".".join(str(part) for part in problem["loc"])
        new = getattr(model, "NEW_KEYS", {}).get(typed)
        return f"{typed} has a new place: {new}" if new else unknown_key(typed, keys)
    key, value, field = _place(model, values, problem)
    own_words = problem["msg"].removeprefix("Value error, ") if problem["type"] == "value_error" else None
    if own_words and (field is None or _section(field)):
        return own_words
    is_missing = problem["type"] == "missing" and isinstance(problem["loc"][-1], str)  # not a part of a tuple
    start = f"{key} is missing" if is_missing else f"{key or 'the configuration'} is {shown(value)}"
    if own_words or field is None:
        return f"{start}; {own_words or 'it must be keys and values'}"
    if get_origin(field.annotation) is Literal:
        return f"{start}; allowed: {', '.join(get_args(field.annotation))}"
    default = f" ({field.default} is the default)" if type(field.default) in (int, float) else ""
    return f"{start}; it must be {_phrase(field.annotation, field.metadata)}{default}"


def unknown_key(typed: str, keys: Sequence[str]) -> str:
    """Say what to write in place of an unknown key: a similar one, here or in another section, or else all."""
    section, _, last = typed[:80].rpartition(".")
    places: dict[str, list[str]] = {}  # the last part of a key -> the sections that have it
    for key in keys:
        places.setdefault(key.rpartition(".")[2], []).append(key.rpartition(".")[0])
    beside = [name for name, sections in places.items() if section in sections]
    near = [f"{section}.{name}".lstrip(".") for name in difflib.get_close_matches(last, beside, n=1)]
    if not near:
        elsewhere = difflib.get_close_matches(last, places, n=1, cutoff=0.75)
        near = [f"{place}.{name}".lstrip(".") for name in elsewhere for place in places[name]]
    if near:
        return f"unknown key {shown(typed)}; did you mean {' or '.join(map(repr, near))}?"
    where = f" in {section}" if section and beside else ""
    return f"unknown key {shown(typed)}; allowed{where}: {', '.join(beside or keys)}"


def _place(model: type[BaseModel], values: Any, problem: Any) -> tuple[str, Any, FieldInfo | None]:
    """Find the dotted key, value and field of a problem, whose path may go on inside the field's type."""
    section: type[BaseModel] | None = model
    names, field = [], None
    for name in problem["loc"]:
        if section is None or name not in section.model_fields:
            break
        names.append(name)
        field = section.model_fields[name]
        values = values.get(name, problem["input"]) if isinstance(values, Mapping) else problem["input"]
        section = _section(field)
    return ".".join(names), values, field


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of the keys below this one, or None if it has none."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a model."""
    for name, field in model.model_fields.items():
        yield prefix + name
        section = _section(field)
        if section is not None:
            yield from _keys(section, f"{prefix}{name}.")


def _phrase(kind: Any, limits: Sequence[Any] = (), many: bool = False) -> str:
    """Say what a type allows, such as "a number above 0 and below 1"; with ``many`` in the plural."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _phrase(parts[0], [limit for part in parts[1:] for limit in getattr(part, "metadata", [part])], many)
    if origin in (Union, UnionType):
        *first, last = [_phrase(part) for part in parts]
        return f"{', '.join(first)} or {last}"
    if origin is Literal:
        return ", ".join(repr(part) for part in parts)
    if origin is tuple:
        count = "" if Ellipsis in parts else f"{len(parts)} "
        filled = "non-empty " if any(hasattr(limit, "min_length") for limit in limits) else ""
        return f"a {filled}list of {count}{_phrase(parts[0], many=True)}"
    if origin is dict:
        return f"a section of names, each with one of {_phrase(parts[1])}"
    if kind in (int, float):
        noun = "whole number" if kind is int else "number"
        bounds = [
            f"{word} {getattr(limit, name)}"
            for limit in limits
            for name, word in _LIMITS.items()
            if hasattr(limit, name)
        ]
        return f"{noun + 's' if many else 'a ' + noun} {' and '.join(bounds)}".rstrip()
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"a section with {', '.join(kind.model_fields)}"
    pattern = next((limit.pattern for limit in limits if getattr(limit, "pattern", None)), None)
    plain = {bool: "true or false", NoneType: "None (null)", Callable: "a function"}
    return plain.get(origin or kind, f"text like {pattern}" if pattern else "texts" if many else "text")
