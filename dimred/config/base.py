"""The base of every section of a configuration, types with a range, and messages about wrong keys and values."""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from ctypes import c_float
from fractions import Fraction as ExactFraction
from typing import Annotated, Any, Self, get_args

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo

from dimred.errors import ConfigError, shown

NO_DECAY_PATTERNS = ("*gamma", "*beta", "*bias")
"""Name patterns of the parameters without weight decay: normalisation's gamma and beta, and biases."""

Fraction = Annotated[float, Field(ge=0, lt=1)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Epochs = Annotated[int, Field(ge=1, le=900_000)]  # orders of samples have larger numbers, see dimred/data/batches.py
_FACTORY = r"^[\w.]+:[\w.]+$"


def known_or_own(names: Sequence[str], name: str) -> str:
    """Return a name that is one of ``names``, or of the form ``package.module:factory``; ValueError for any other."""
    if name not in names and not re.match(_FACTORY, name):
        raise ValueError(f"allowed: {', '.join(names)}, or your own by package.module:factory")
    return name


def _own(name: str) -> str:
    if not re.match(_FACTORY, name):
        raise ValueError("name your own by package.module:factory, or null")
    return name


def _number_or_fraction(value: Any) -> Any:
    text = str(value).strip()
    percent = re.fullmatch(r"(\d{1,2}(\.\d{1,6})?)\s*%", text)
    if percent and ExactFraction(percent[1]) > 0:
        return f"{percent[1]}%"
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise ValueError("it must be a whole number of at least 1, or a fraction of all passes below 100%, such as 10%")
    return int(text)


OwnFactory = Annotated[str, AfterValidator(_own)]
"""The name of a user's own function, ``package.module:factory``."""
NumberOrFraction = Annotated[int | str, BeforeValidator(_number_or_fraction)]
"""A number of epochs, or a fraction of the epochs of both stages together."""


class Strict(BaseModel):
    """The base of every section of a configuration; it is frozen and refuses unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, loc_by_alias=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Turn YAML's ``off`` or ``yes`` into text unless the key is boolean; as a number it would count as 0 or 1.

        Raises:
            ValueError: one is in a list; no list of a configuration has any.
        """
        if isinstance(value, list | tuple) and any(isinstance(part, bool) for part in value):
            raise ValueError("true and false are no entries of this list; give numbers, or put quotes around a text")
        kind = cls.model_fields[str(info.field_name)].annotation
        return str(value) if isinstance(value, bool) and bool not in (kind, *get_args(kind)) else value

    @classmethod
    def checked(cls, values: Mapping[str, Any], *, exact: bool = False, other_keys: Collection[str] = ()) -> Self:
        """Build the model from these values, and check it as a whole.

        Args:
            values: key -> value.
            exact: also refuse a value of another type that would be converted, such as the text "0.5" for a number.
            other_keys: keys that the caller handles itself; they may be suggested in place of an unknown one.

        Raises:
            ConfigError: names each key that is unknown or whose value is not allowed, and says what is allowed.
        """
        try:
            return cls.model_validate(values, strict=exact or None)
        except ValidationError as error:
            keys = [*keys_of(cls), *other_keys]
            lines: dict[str, list[str]] = {}  # what is wrong -> what is allowed; a union has one entry for each type
            for problem in error.errors():
                line, alternatives = _in_words(cls, keys, values, problem)
                lines[line] = list(dict.fromkeys([*lines.get(line, []), *alternatives]))
            raise ConfigError(
                "\n".join(line + " or ".join(alternatives) for line, alternatives in lines.items())
            ) from error

    @classmethod
    def check_arguments(cls, **values: Any) -> None:
        """Check arguments of Python by the ranges of the keys of their names; a text is no number, and None no value.

        A graph rounds numbers to float32, so they must be in their range there, too: 1 - 1e-8 is 1.

        Raises:
            ConfigError: names each argument whose value is not allowed, and says what is allowed.
        """
        values = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
        for name, value in values.items():
            if value is None:
                raise ConfigError(f"{name} is None; give a value, or leave it out")
        cls.checked(values, exact=True)
        floats = {name: c_float(value).value for name, value in values.items() if isinstance(value, float)}
        try:
            cls.checked(values | floats, exact=True)
        except ConfigError as error:
            raise ConfigError(f"rounded to float32, as a graph gets it, {error}") from None


def _in_words(model: type[BaseModel], keys: Sequence[str], values: Any, problem: Any) -> tuple[str, list[str]]:
    """Return the beginning of a problem's line, and what is allowed unless the line already says so.

    Where pydantic's message names its own types, ours replaces it.
    """
    kind, message = problem["type"], problem["msg"]
    if kind == "extra_forbidden":
        unknown = ".".join(str(part) for part in problem["loc"])
        return "\n".join(lines_of_unknown(unknown, problem["input"], keys, getattr(model, "NEW_KEYS", {}))), []
    # The location may go on below the key, for example to an element of a list.
    parts = [str(part) for part in problem["loc"]]
    key = next((key for n in range(len(parts), 0, -1) if (key := ".".join(parts[:n])) in keys), "")
    for name in filter(None, key.split(".")):
        values = values.get(name, problem["input"]) if isinstance(values, Mapping) else problem["input"]
    start = f"{key or 'the configuration'} is {shown(values)}; "
    if kind == "value_error":
        message, is_section = message.removeprefix("Value error, "), any(one.startswith(f"{key}.") for one in keys)
        return (start + message if key and not is_section else message), []
    if kind == "missing":
        is_key = isinstance(problem["loc"][-1], str)  # not a part of a list
        return (f"{key} is missing" if is_key else f"{start}the list must be longer"), []
    if kind == "model_type":
        return f"{start}it must be a section of keys and values", []
    message = message.replace("Tuple should have", "Input should be a list of").partition(", unable to ")[0]
    return f"{start}it must be ", [message.removeprefix("Input should be ")]


def lines_of_unknown(unknown: str, value: Any, keys: Sequence[str], new_keys: Mapping[str, str]) -> Iterator[str]:
    """Yield a line about an unknown dotted key, or about each key in a section that no known one resembles.

    ``new_keys`` maps a dotted key, or its last parts, to what to do instead.
    """
    parts = unknown.split(".")
    if new := next(filter(None, (new_keys.get(".".join(parts[n:])) for n in range(len(parts)))), None):
        yield f"{unknown} is no key: {new}"
    elif isinstance(value, Mapping) and value and not _similar_keys(unknown, keys):
        for name, inner in value.items():
            yield from lines_of_unknown(f"{unknown}.{name}", inner, keys, new_keys)
    else:
        yield unknown_key(unknown, keys)


def unknown_key(unknown: str, keys: Sequence[str]) -> str:
    """Return a message about an unknown dotted key, which suggests a similar one, or else lists the allowed ones."""
    if near := _similar_keys(unknown, keys):
        return f"unknown key {shown(unknown)}; did you mean {' or '.join(map(repr, near))}?"
    section = unknown[:80].rpartition(".")[0]
    beside = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == section]
    where = f" in {section}" if section and beside else ""
    return f"unknown key {shown(unknown)}; allowed{where}: {', '.join(beside or keys)}"


def _similar_keys(unknown: str, keys: Sequence[str]) -> list[str]:
    """Return the key of the same section that is most like an unknown one, or else those of other sections."""
    section, _, last = unknown[:80].rpartition(".")
    places: dict[str, list[str]] = {}  # the last part of a key -> the sections that have it
    for key in keys:
        places.setdefault(key.rpartition(".")[2], []).append(key.rpartition(".")[0])
    beside = [name for name, sections in places.items() if section in sections]
    if near := difflib.get_close_matches(last, beside, n=1):
        return [f"{section}.{near[0]}".lstrip(".")]
    elsewhere = difflib.get_close_matches(last, places, n=1, cutoff=0.75)
    return [f"{place}.{name}".lstrip(".") for name in elsewhere for place in places[name]]


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of the section that a key holds, or None if it holds a value."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every key of a model."""
    for name, field in model.model_fields.items():
        yield prefix + name
        section = _section(field)
        if section is not None:
            yield from keys_of(section, f"{prefix}{name}.")


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the innermost values of nested sections by their dotted keys; an empty section is a value."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
