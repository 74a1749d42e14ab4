"""The parts of a training step, in both stages; all off by default."""

from typing import Annotated, Literal

from pydantic import Field

from dimred.config.base import Count, Fraction, Positive, Strict


class PrecisionConfig(Strict):
    """Mixed precision, see ``dimred.train_step.precision``."""

    level: Literal["O0", "O1", "O2", "O3"] = "O0"
    """O0 float32; O1 the white list in half precision; O2 all but the black list; O3 everything."""
    dtype: Literal["float16", "bfloat16"] = "float16"
    """Half precision's type; bfloat16 only where the device has it."""
    keep_batch_norm: bool | None = None
    """Whether BatchNorm stays float32 in O2 and O3; null for yes in O2, no in O3."""
    black_list: tuple[str, ...] = ()
    """More cells of mindspore.nn that stay float32, by name."""
    white_list: tuple[str, ...] = ()
    """In O1: more cells of mindspore.nn in half precision, by name."""
    casts: dict[str, Literal["float16", "bfloat16", "float32"]] = Field(default_factory=dict)
    """Pattern of a cell's name in the network to the type it computes in, whatever the level says."""


class LossScaleConfig(Strict):
    """What the loss is multiplied with before its gradient is taken, see ``dimred.train_step.loss_scale``."""

    kind: Literal["none", "static", "dynamic"] = "none"
    """none; static: the scale stays; dynamic: it shrinks on overflow and grows after a row of good steps."""
    scale: Positive | None = None
    """The scale, of dynamic the first one; 1024 and 65536 if null."""
    drop_overflow: bool = True
    """Of static: drop a step whose gradient is not finite; false applies whatever comes."""
    factor: Annotated[float, Field(gt=1)] = 2.0
    """Of dynamic: by what it shrinks and grows."""
    window: Count = 2000
    """Of dynamic: good steps in a row before it grows."""
    smallest: Positive = 1.0
    """Of dynamic: lower bound."""
    largest: Positive = 2.0**24
    """Of dynamic: upper bound."""


class ClippingConfig(Strict):
    """Gradients that are too long are shortened, see ``dimred.train_step.clipping``."""

    norm: Positive | None = None
    """Longest global norm; null for no bound."""
    value: Positive | None = None
    """Largest entry in magnitude; null for no bound."""


class EmaConfig(Strict):
    """An average of weights and BatchNorm statistics, evaluated beside the raw ones, see ``dimred.train_step.ema``."""

    decay: Fraction | None = None
    """Share of the average that stays at each applied step, such as 0.999; null for no average."""
    ramp: bool = True
    """The decay ramps up as 1 - exp(-t / 2000), so that early weights go sooner."""
