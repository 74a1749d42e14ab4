"""Messages about keys that are unknown and values that are not allowed."""

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from dimred.errors import shown


def problems_of(
    model: type[BaseModel], values: Any, error: ValidationError, other_keys: Collection[str]
) -> tuple[str, ...]:
    """Turn pydantic's error about a model's values into one message for each problem."""
    keys = [*keys_of(model), *other_keys]
    problems: dict[str, list[str]] = {}  # what is wrong -> what is allowed; a union has one entry for each type
    for problem in error.errors():
        for wrong, allowed in _in_words(model, keys, values, problem):
            alternatives = problems.setdefault(wrong, [])
            if allowed and allowed not in alternatives:
                alternatives.append(allowed)
    return tuple(wrong + " or ".join(alternatives) for wrong, alternatives in problems.items())


def _in_words(model: type[BaseModel], keys: Sequence[str], values: Any, problem: Any) -> Iterator[tuple[str, str]]:
    """Yield what is wrong, and what is allowed; the latter is empty if the former says it.

    Where pydantic's message names its own types, ours replaces it.
    """
    kind = problem["type"]
    if kind == "extra_forbidden":
        unknown = ".".join(str(part) for part in problem["loc"])
        for line in lines_of_unknown(unknown, problem["input"], keys, getattr(model, "NEW_KEYS", {})):
            yield line, ""
        return
    key = _key_at(problem["loc"], keys)
    for name in filter(None, key.split(".")):
        values = values.get(name, problem["input"]) if isinstance(values, Mapping) else problem["input"]
    start = f"{key or 'the configuration'} is {shown(values)}; "
    if kind == "value_error":  # one of dimred's validators raised it, with a message for each problem
        is_value = key and not any(other.startswith(f"{key}.") for other in keys)
        for message in problem["ctx"]["error"].args:
            yield (start + message if is_value else message), ""
    elif kind == "missing" and isinstance(problem["loc"][-1], str):
        yield f"{key} is missing", ""
    elif kind == "missing":
        yield f"{start}the list must be longer", ""
    elif kind == "model_type":
        yield f"{start}it must be a section of keys and values", ""
    else:
        message = problem["msg"].replace("Tuple should have", "Input should be a list of")
        message = message.partition(", unable to ")[0]
        yield f"{start}it must be ", message.removeprefix("Input should be ")


def _key_at(location: Sequence[int | str], keys: Collection[str]) -> str:
    """Return the dotted key at pydantic's location of a problem, or else the nearest key above it; "" for none."""
    parts = [str(part) for part in location]
    beginnings = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((key for key in beginnings if key in keys), "")


def lines_of_unknown(unknown: str, value: Any, keys: Sequence[str], new_keys: Mapping[str, str]) -> Iterator[str]:
    """Yield a line about an unknown dotted key; for a section that resembles no known key, one about each key in it.

    The line says what to do instead, suggests a similar key, or lists the allowed ones. ``new_keys`` maps a dotted key,
    or its last parts, to what to do instead.
    """
    parts = unknown.split(".")
    advice = [new_keys[ending] for n in range(len(parts)) if (ending := ".".join(parts[n:])) in new_keys]
    near = _similar_keys(unknown, keys)
    if advice:
        yield f"{unknown} is not a key: {advice[0]}"
    elif near:
        yield f"unknown key {shown(unknown)}; did you mean {' or '.join(map(repr, near))}?"
    elif isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from lines_of_unknown(f"{unknown}.{name}", inner, keys, new_keys)
    else:
        section = unknown[:80].rpartition(".")[0]
        beside = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == section]
        where = f" in {section}" if section and beside else ""
        yield f"unknown key {shown(unknown)}; allowed{where}: {', '.join(beside or keys)}"


def _similar_keys(unknown: str, keys: Sequence[str]) -> list[str]:
    """Return the key of the same section that is most like an unknown one, or else similar keys of other sections."""
    section, _, last = unknown[:80].rpartition(".")
    places: dict[str, list[str]] = {}  # the last part of a key -> the sections that have it
    for key in keys:
        places.setdefault(key.rpartition(".")[2], []).append(key.rpartition(".")[0])
    beside = [name for name, sections in places.items() if section in sections]
    if near := difflib.get_close_matches(last, beside, n=1):
        return [f"{section}.{near[0]}".lstrip(".")]
    elsewhere = difflib.get_close_matches(last, places, n=1, cutoff=0.75)
    return [f"{place}.{name}".lstrip(".") for name in elsewhere for place in places[name]]


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every key of a model."""
    for name, field in model.model_fields.items():
        yield prefix + name
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from keys_of(kind, f"{prefix}{name}.")
