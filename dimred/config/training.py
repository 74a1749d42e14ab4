"""Stage 1's learning rate and optimizer."""

from typing import Annotated, Literal

from pydantic import Field

from dimred.config.base import NO_DECAY_PATTERNS, Count, Fraction, OpenFraction, Strict


class CooldownConfig(Strict):
    """The rate reached after ``after_epoch`` is brought linearly to 0 over ``epochs``."""

    after_epoch: Count
    """The epoch after which the rate leaves the schedule."""
    epochs: Count
    """How many epochs it takes to reach 0."""


class ScheduleConfig(Strict):
    """Learning rate: 0 to ``peak`` in the warm-up, then by name, or sooner to 0 in a cooldown."""

    name: Literal["linear", "cosine", "step", "constant"] = "linear"
    """After the warm-up: linear or cosine to 0 at total_epochs, step down at milestones, or constant."""
    peak: Annotated[float, Field(gt=0)] = 0.8
    """The largest learning rate."""
    warmup_epochs: Annotated[int, Field(ge=0)] = 5
    """Epochs from 0 to the peak."""
    total_epochs: Count = 90
    """The epoch at whose end the schedule ends; a run may stop before."""
    milestones: tuple[Count, ...] = ()
    """Of step: the epochs after which the rate falls."""
    step_factor: OpenFraction = 0.1
    """Of step: what the rate is multiplied with at each milestone."""
    cooldown: CooldownConfig | None = None
    """Bring the rate to 0 sooner; null for no cooldown."""


class OptimizerConfig(Strict):
    """How gradients become updates, see ``dimred.train_step.optimizers``."""

    name: Literal["momentum", "sgd", "adamw", "lamb"] = "momentum"
    """The optimizer; adamw is MindSpore's AdamWeightDecay, without bias correction."""
    momentum: Fraction | None = None
    """Of momentum (0.9 if null) and sgd (0 if null)."""
    nesterov: bool | None = None
    """Of sgd: Nesterov's momentum."""
    beta1: Fraction | None = None
    """Of adamw and lamb: decay of the first moment; 0.9 if null."""
    beta2: Fraction | None = None
    """Of adamw and lamb: decay of the second moment; 0.999 if null."""
    eps: Annotated[float, Field(gt=0)] | None = None
    """Of adamw and lamb: added to the root of the second moment; 0.000001 if null."""
    weight_decay: Fraction = 1e-4
    """Weight decay of every parameter that no_decay doesn't spare."""
    no_decay: tuple[str, ...] = NO_DECAY_PATTERNS
    """Patterns of the names of parameters without weight decay: BatchNorm's gamma and beta, and biases."""
