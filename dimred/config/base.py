"""The base of every section of a configuration, and types with a range."""

import re
from collections.abc import Collection, Mapping, Sequence
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

from dimred.config.messages import problems_of
from dimred.errors import ConfigError, ProblemsError

NO_DECAY_PATTERNS = ("*gamma", "*beta", "*bias")
"""Name patterns of the parameters without weight decay: normalisation's gamma and beta, and biases."""

Fraction = Annotated[float, Field(ge=0, lt=1)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Epochs = Annotated[int, Field(ge=1, le=900_000)]  # orders of samples have larger numbers, see dimred/data/batches.py
NUMBER_OR_FRACTION = "it must be a whole number of at least 1, or a fraction of all passes below 100%, such as 10%"
_FACTORY = r"^[\w.]+:[\w.]+$"


def is_own(name: str) -> bool:
    """Return whether a name has the form ``package.module:factory``, which names a user's own code."""
    return re.match(_FACTORY, name) is not None


def known_or_own(names: Sequence[str], name: str) -> str:
    """Return a name that is one of ``names``, or of the form ``package.module:factory``; ValueError for any other."""
    if name not in names and not is_own(name):
        raise ValueError(f"allowed: {', '.join(names)}, or your own by package.module:factory")
    return name


def _own(name: str) -> str:
    if not is_own(name):
        raise ValueError("name your own by package.module:factory, or null")
    return name


def _number_or_fraction(value: Any) -> Any:
    text = str(value).strip()
    percent = re.fullmatch(r"(\d{1,2}(\.\d{1,6})?)\s*%", text)
    if percent and ExactFraction(percent[1]) > 0:
        return f"{percent[1]}%"
    if not re.fullmatch(r"0|[1-9]\d{0,8}", text):
        raise ValueError(NUMBER_OR_FRACTION)
    return int(text)


def _percentage(value: Any) -> Any:
    percent = re.fullmatch(r"(\d{1,2}(?:\.\d{1,6})?)\s*%", str(value).strip())
    return float(ExactFraction(percent[1]) / 100) if percent else value


Percentage = Annotated[OpenFraction, BeforeValidator(_percentage, json_schema_input_type=float | str)]
"""A fraction above 0 and below 1, which may be written as a percentage, such as 5%."""
OwnFactory = Annotated[str, AfterValidator(_own)]
"""The name of a user's own function, ``package.module:factory``."""
NumberOrFraction = Annotated[int | str, BeforeValidator(_number_or_fraction)]
"""A number of epochs, or a fraction of the epochs of both stages together; 0 for a method that trains nothing."""


class Strict(BaseModel):
    """The base of every section of a configuration; it is frozen and refuses unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, loc_by_alias=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Turn a boolean, such as YAML's ``off``, into text unless the key is boolean; else it would become 0 or 1.

        Raises:
            ValueError: a boolean is in a list; no list of a configuration holds booleans.
        """
        if isinstance(value, list | tuple) and any(isinstance(part, bool) for part in value):
            raise ValueError("true and false can't be in this list; give numbers, or texts in quotes")
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
            raise ProblemsError(problems_of(cls, values, error, other_keys)) from error

    @classmethod
    def check_arguments(cls, **values: Any) -> None:
        """Check Python arguments against the ranges of the keys with the same names, without conversion; refuse None.

        A graph rounds numbers to float32, so the rounded numbers must be in range too: 1 - 1e-8 becomes 1.

        Raises:
            ConfigError: names each argument whose value is not allowed, and says what is allowed.
        """
        values = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
        for name, value in values.items():
            if value is None:
                raise ConfigError(f"{name} is None; give a value, or leave it out", argument=name)
        cls.checked(values, exact=True)
        floats = {name: c_float(value).value for name, value in values.items() if isinstance(value, float)}
        try:
            cls.checked(values | floats, exact=True)
        except ConfigError as error:
            raise ConfigError(f"rounded to float32, which a graph computes in, {error}") from None


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the innermost values of nested sections by their dotted keys; an empty section is a value."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
