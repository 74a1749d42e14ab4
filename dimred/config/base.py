"""What the parts of a configuration share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, lt=1)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Channels = tuple[float, float, float]


class Strict(BaseModel):
    """What every part of a configuration is: unknown keys are refused, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


NO_DECAY_PATTERNS = ("*gamma", "*beta", "*bias")
