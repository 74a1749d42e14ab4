"""The section ``cooldown`` of stage 2's configuration."""

from typing import ClassVar

from dimred.config.base import Positive
from dimred.config.methods import MethodConfig
from dimred.config.parts import OptimizerConfig
from dimred.curves import CurveName


class CooldownConfig(MethodConfig):
    """How stage 2 finishes stage 1's training: it continues with the same optimizer state, batches and parts of the
    step, while the learning rate falls to 0."""

    plan: ClassVar[str] = "dimred.stages.cooldown:CooldownPlan"
    report: ClassVar[str] = "dimred.report.cooldown_report:CooldownReport"
    default_epochs: ClassVar[int | str] = "10%"
    first_keys: ClassVar[tuple[str, ...]] = ("factor", "schedule")

    factor: Positive = 0.5
    """The rate begins at this multiple of the rate that stage 1 ended with, or of cooldown.rate."""
    schedule: CurveName = "linear"
    """How the rate falls to 0 as x goes from 0 to 1: linear, as 1 - x; cosine; or 1-sqrt, as 1 - sqrt(x)."""
    keep_best: bool = True
    """Keep the best average of stage 1's snapshots instead of the weights after the last epoch if the loss that is
    trained is lower for it on the val split; false keeps the weights after the last epoch, and needs no val."""
    rate: Positive | None = None
    """Replaces the rate that stage 1 ended with, for WEIGHTS from elsewhere; null for stage 1's."""
    optimizer: OptimizerConfig | None = None
    """Replaces stage 1's optimizer, for WEIGHTS from elsewhere; null for stage 1's."""

    @property
    def uses_val(self) -> bool:
        """Return whether ``val`` chooses between the cooldown's last weights and the best average."""
        return self.keep_best

    @property
    def fixed_keys(self) -> frozenset[str]:
        """Return ``epochs``: the rate falls to 0 by its end, and with more epochs it would rise again."""
        return frozenset({"epochs"})
