"""Continue stage 1's optimizer from its last rate to 0: decide what continues from WEIGHTS, and build the step."""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from dimred.config import CooldownConfig, OptimizerConfig, StageOneConfig, StageTwoConfig
from dimred.curves import CurveName
from dimred.errors import ConfigError
from dimred.io.run_names import CONFIG, FULL_CHECKPOINT, STAGE_1_CHECKPOINTS
from dimred.runs.steps import build_optimizer, build_rates, join_step, warn_of_idle_patterns
from dimred.runs.task import Task
from dimred.stages.parent import StageOneRun
from dimred.train_step.optimizer_state import state_parameters
from dimred.train_step.protocol import Step
from dimred.train_step.schedule import with_cooldown
from dimred.train_step.step import TrainStep
from dimred.vectors.parameters import from_arrays

_log = logging.getLogger(__name__)

_USED_UP = 1e-3  # fraction of the peak below which nothing is left to cool down


@dataclass(frozen=True)
class Cooldown:
    """A cooldown as it begins, the same on every rank.

    Attributes:
        factor: the cooldown begins at ``factor * rate``.
        schedule: how the rate falls to 0, a name of ``CURVES``.
        optimizer: the optimizer's settings.
        rate: learning rate that stage 1 ended with.
        updates: updates that the optimizer has made; its bias correction and its rates go on from there. 0 if its
            state begins anew.
        taken_from: where optimizer and rate come from, in words.
        steps_per_epoch: stage 1's, to notice batches of a different size; None if the settings give the rate, or the
            name of WEIGHTS does not tell.
        parent: the run that WEIGHTS come from.
    """

    factor: float
    schedule: CurveName
    optimizer: OptimizerConfig
    rate: float
    updates: int
    taken_from: str
    steps_per_epoch: int | None
    parent: StageOneRun = field(compare=False, repr=False)

    def summary(self) -> dict[str, Any]:
        """Return everything but ``parent``, for ``result.json``."""
        return {
            "factor": self.factor,
            "schedule": self.schedule,
            "optimizer": self.optimizer.name,
            "rate": self.rate,
            "updates": self.updates,
            "taken_from": self.taken_from,
            "steps_per_epoch": self.steps_per_epoch,
            "optimizer_settings": self.optimizer.model_dump(mode="json"),
        }

    def build_optimizer(self, task: Task[StageTwoConfig]) -> nn.Optimizer:
        """Build the optimizer, with its state if that goes on; its rates fall from ``factor * rate`` to 0.

        Warn if stage 1's epochs had a different length.
        """
        before, now = self.steps_per_epoch, task.steps_per_epoch
        if task.ranks.is_rank_zero and before not in (None, now):
            _log.warning(
                f"stage 1 made {before} steps in an epoch, but stage 2 makes {now}, so stage 1's rate is "
                "for batches of another size; give the batch size, the accumulation and the devices of stage 1, or set "
                "cooldown.rate"
            )
        constant = np.full(self.updates + 1, self.factor * self.rate)
        rates = with_cooldown(constant, self.updates, task.settings.n_epochs * now, self.schedule)
        optimizer = build_optimizer(self.optimizer, task.network, rates.tolist())
        self._take_over(state_parameters(optimizer))
        return optimizer

    def take_over_parts(self, step: Step) -> None:
        """Set the parts of a step, such as its EMA, to their state in WEIGHTS, if the optimizer's state goes on too."""
        for part in step.parts:
            if self.parent.arrays.keys() >= {parameter.name for parameter in part.parameters}:
                self._take_over(part.parameters)

    def _take_over(self, parameters: list[Any]) -> None:
        if self.updates > 0:
            from_arrays(parameters, self.parent.arrays, self.parent.title)


def plan_cooldown(config: CooldownConfig, network: nn.Cell, parent: StageOneRun) -> Cooldown:
    """Decide which optimizer goes on at which rate; ``optimizer`` and ``rate`` of the section take precedence.

    Raises:
        ConfigError: WEIGHTS lack the optimizer's state, or are not in a stage 1 run that has optimizer and rate, and
            the settings do not replace these; the optimizer is schedule_free; the name of WEIGHTS does not tell
            their epoch; or stage 1's schedule had already brought the rate to nothing.
    """
    replacement = config.optimizer
    if replacement is None and parent.n_updates is None:
        raise ConfigError(
            f"{parent.title} has the weights but not the state of an optimizer; a cooldown needs a full checkpoint of "
            f"stage 1, {FULL_CHECKPOINT}. Or set cooldown.optimizer.name and cooldown.rate, to begin anew"
        )
    if replacement is not None and replacement.name == "schedule_free":
        raise ConfigError("cooldown.optimizer.name is schedule_free, which has no rate to bring to 0; name another one")
    if replacement is not None and config.rate is not None:
        optimizer, rate, source = replacement, config.rate, "cooldown.optimizer and cooldown.rate of the configuration"
    else:
        optimizer, source = replacement or _known_config(parent).optimizer, str(parent.path.parent.parent / CONFIG)
        if optimizer.name == "schedule_free":
            raise ConfigError(
                f"{parent.title} was trained with schedule_free, which leaves nothing to cool down: the trained "
                "network is *-final.ckpt beside it. To cool that down, name it as WEIGHTS, and set "
                "cooldown.optimizer.name=momentum and cooldown.rate"
            )
        rate = config.rate or last_rate(parent)
    steps_per_epoch = parent.steps_per_epoch if config.rate is None else None
    cooldown = Cooldown(config.factor, config.schedule, optimizer, rate, 0, source, steps_per_epoch, parent)
    has_state = True
    if replacement is not None:
        state = state_parameters(build_optimizer(replacement, network, [0.0]))
        has_state = parent.arrays.keys() >= {parameter.name for parameter in state}
    if parent.n_updates is None or not has_state:
        return replace(cooldown, taken_from=f"{source}; its state begins anew")
    return replace(cooldown, updates=parent.n_updates)


def _known_config(parent: StageOneRun) -> StageOneConfig:
    """Return stage 1's configuration; ConfigError if it is not known."""
    if parent.config is None:
        raise ConfigError(
            f"{parent.title} is not in the {STAGE_1_CHECKPOINTS}/ of a stage 1 run, so neither its optimizer nor its "
            "rate is known; for a cooldown set cooldown.optimizer.name and cooldown.rate"
        )
    return parent.config


def last_rate(parent: StageOneRun) -> float:
    """Return the rate that the next update of stage 1 would have had.

    Raises:
        ConfigError: the run or the epoch is not known, or nothing is left of the rate.
    """
    schedule, epoch, per_epoch = _known_config(parent).schedule, parent.epoch, parent.steps_per_epoch
    if epoch is None or per_epoch is None:
        raise ConfigError(
            f"WEIGHTS is {str(parent.path)!r}, not NAME-EPOCH_STEPS.ckpt, so stage 1's rate there is not known; set "
            "cooldown.rate"
        )
    rates = build_rates(schedule, per_epoch, epoch + 1)
    # The updates are fewer than the steps if some steps were dropped.
    n_updates = epoch * per_epoch if parent.n_updates is None else parent.n_updates
    has_ended = n_updates >= schedule.total_epochs * per_epoch
    rate = 0.0 if schedule.falls_to_zero and has_ended else float(rates[min(n_updates, len(rates) - 1)])
    if schedule.falls_to_zero and rate < _USED_UP * schedule.peak:
        raise ConfigError(
            f"Stage 1's learning rate was {rate:.2g} by epoch {epoch}, so nothing is left to cool down; name an "
            "earlier full checkpoint, or set cooldown.rate"
        )
    return rate


def check_no_matrix(pca_mat: Path | None) -> None:
    """Refuse a basis that is given to a cooldown."""
    if pca_mat is not None:
        raise ConfigError(
            f"PCA_MAT is {str(pca_mat)!r}, but method is cooldown, which has no use for it; leave PCA_MAT out, or "
            "search in it with --set method=search"
        )


def build_cooldown_step(task: Task[StageTwoConfig], cooldown: Cooldown) -> TrainStep:
    """Build stage 2's step of a cooldown: stage 1's step, whose rate is brought to 0.

    If WEIGHTS hold the optimizer's state, the optimizer continues from it, and so do the loss scale and the EMA where
    WEIGHTS hold theirs. Everything else starts afresh. The network has the weights of stage 1 already.
    """
    _log.info(
        f"cooldown: {cooldown.optimizer.name} from {cooldown.factor:.3g} of stage 1's rate {cooldown.rate:.4g}, "
        f"{cooldown.schedule} to 0 ({cooldown.taken_from})"
    )
    warn_of_idle_patterns(cooldown.optimizer, task.network)
    step = join_step(task.settings, task.network, cooldown.build_optimizer(task), task.ranks)
    cooldown.take_over_parts(step)
    return step
