"""Continue stage 1's optimizer from its last rate to 0: what goes on from WEIGHTS, and the step that does it."""

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from mindspore import nn

from dimred.config import CooldownConfig, OptimizerConfig, StageTwoConfig
from dimred.curves import CurveName
from dimred.errors import ConfigError
from dimred.io.run_names import full_checkpoint_beside
from dimred.runs.steps import build_optimizer, join_step
from dimred.runs.task import Task
from dimred.stages.parent import StageOneRun
from dimred.train_step.optimizer_state import state_parameters
from dimred.train_step.protocol import Step
from dimred.train_step.schedule import with_cooldown
from dimred.train_step.step import TrainStep
from dimred.vectors.parameters import check_arrays, from_arrays

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cooldown:
    """A cooldown as it begins, the same on every rank.

    Attributes:
        factor: it begins at ``factor * rate``.
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

    @property
    def continues(self) -> bool:
        """Return whether the optimizer's state goes on from WEIGHTS."""
        return self.updates > 0

    def summary(self) -> dict[str, Any]:
        """Return all of it but the run for ``result.json``."""
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

    def check_state(self, network: nn.Cell) -> None:
        """Check that the optimizer's state in WEIGHTS fits this network, if it is to go on.

        Raises:
            CheckpointError: it belongs to a different network.
        """
        if self.continues:
            state = state_parameters(build_optimizer(self.optimizer, network, [0.0]))
            check_arrays(state, self.parent.arrays, self.parent.title)

    def build_optimizer(self, task: Task[StageTwoConfig]) -> nn.Optimizer:
        """Build the optimizer, with its state if that goes on; its rates fall from ``factor * rate`` to 0.

        Warn if stage 1's epochs had a different length.

        Args:
            task: the task, with stage 2's number of steps.
        """
        before, now = self.steps_per_epoch, task.steps_per_epoch
        if task.ranks.is_rank_zero and before not in (None, now):
            _log.warning(
                f"stage 1 made {before} steps in an epoch, stage 2 makes {now}, so that its rate is "
                "for batches of another size; give the batch size, the accumulation and the devices of stage 1, or set "
                "cooldown.rate"
            )
        constant = np.full(self.updates + 1, self.factor * self.rate)
        rates = with_cooldown(constant, self.updates, task.settings.n_epochs * now, self.schedule)
        optimizer = build_optimizer(self.optimizer, task.network, rates.tolist())
        self._take_over(state_parameters(optimizer))
        return optimizer

    def take_over_parts(self, step: Step) -> None:
        """Set the parts of a step, such as its EMA, to their state from stage 1, if the optimizer's goes on, too.

        Args:
            step: the step; a part whose state WEIGHTS lack stays as it is.
        """
        for part in step.parts:
            if self.parent.arrays.keys() >= {parameter.name for parameter in part.parameters}:
                self._take_over(part.parameters)

    def _take_over(self, parameters: list[Any]) -> None:
        if self.continues:
            from_arrays(parameters, self.parent.arrays, self.parent.title)


def plan_cooldown(config: CooldownConfig, network: nn.Cell, parent: StageOneRun) -> Cooldown:
    """Decide which optimizer goes on at which rate; ``optimizer`` and ``rate`` of the section take precedence.

    Args:
        config: section ``cooldown`` of stage 2.
        network: the network of stage 2.
        parent: the run that WEIGHTS come from.

    Returns:
        The cooldown as it begins.

    Raises:
        ConfigError: WEIGHTS lack the optimizer's state, or are not in a stage 1 run that has optimizer and rate, and
            the settings do not replace these; the optimizer is schedule_free; the name of WEIGHTS does not tell
            their epoch; or stage 1's schedule had already brought the rate to nothing.
    """
    replacement = config.optimizer
    if replacement is None and parent.n_updates is None:
        raise ConfigError(
            f"{parent.title} has the weights but not the state of an optimizer; a cooldown needs a full checkpoint, "
            f"such as {full_checkpoint_beside(parent.path)}. Or set cooldown.optimizer.name and cooldown.rate, to "
            "begin anew"
        )
    if replacement is not None and replacement.name == "schedule_free":
        raise ConfigError("cooldown.optimizer.name is schedule_free, which has no rate to bring to 0; name another one")
    if replacement is not None and config.rate is not None:
        optimizer, rate, source = replacement, config.rate, "cooldown.optimizer and cooldown.rate of the configuration"
    else:
        optimizer, source = replacement or parent.known_config().optimizer, str(parent.config_file)
        if optimizer.name == "schedule_free":
            raise ConfigError(
                f"{parent.title} was trained with schedule_free. That leaves nothing to cool down: the network is "
                "*-final.ckpt beside it. Or name that one as WEIGHTS, and set cooldown.optimizer.name=momentum and "
                "cooldown.rate"
            )
        rate = config.rate or parent.last_rate()
    steps_per_epoch = parent.steps_per_epoch if config.rate is None else None
    cooldown = Cooldown(config.factor, config.schedule, optimizer, rate, 0, source, steps_per_epoch, parent)
    has_state = True
    if replacement is not None:
        state = state_parameters(build_optimizer(replacement, network, [0.0]))
        has_state = parent.arrays.keys() >= {parameter.name for parameter in state}
    if parent.n_updates is None or not has_state:
        return replace(cooldown, taken_from=f"{source}; its state begins anew")
    return replace(cooldown, updates=parent.n_updates)


def build_cooldown_step(task: Task[StageTwoConfig], cooldown: Cooldown) -> TrainStep:
    """Build stage 2's step of a cooldown: stage 1's step, whose rate is brought to 0.

    If WEIGHTS hold the optimizer's state, the optimizer continues from it, and so do the loss scale and the EMA where
    WEIGHTS hold theirs. Everything else starts afresh.

    Args:
        task: the task of stage 2, whose network has the weights of stage 1.
        cooldown: the cooldown as it begins.

    Raises:
        ConfigError: the loss can't be built, see ``build_loss``.
    """
    step = join_step(task.settings, task.network, cooldown.build_optimizer(task), task.ranks)
    cooldown.take_over_parts(step)
    return step
