"""What the parts of a configuration share: the base of every part, and types with a range."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dimred.config.refusal import refusal

NO_DECAY_PATTERNS = ("*gamma", "*beta", "*bias")
"""Patterns of the names of parameters without weight decay: normalisation's gamma and beta, and biases."""

Fraction = Annotated[float, Field(ge=0, lt=1)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """What every part of a configuration is: unknown keys are refused, and nothing changes afterwards."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, loc_by_alias=False
    )

    @classmethod
    def checked(cls, values: Mapping[str, Any], *, exact: bool = False, other_keys: Collection[str] = ()) -> Self:
        """Build the model from these values, and check it as a whole.

        Args:
            values: key -> value.
            exact: also refuse values of another type, such as the text "0.5"; a YAML file may give a number as text.
            other_keys: keys that the caller takes itself, to be suggested in place of an unknown one.

        Raises:
            ConfigError: names each key that is unknown or whose value is not allowed, and says what is allowed.
        """
        try:
            return cls.model_validate(values, strict=exact or None)
        except ValidationError as error:
            raise refusal(cls, values, error, other_keys) from error
