"""Continue stage 1's optimizer from its last rate to 0: what goes on from WEIGHTS, and the step that does it."""

import logging
from typing import Any, NamedTuple

import numpy as np
from mindspore import nn

from dimred.config import CooldownConfig, OptimizerConfig, StageTwoConfig
from dimred.curves import CurveName
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError
from dimred.io.run_names import full_checkpoint_beside
from dimred.runs.steps import build_optimizer, join_step
from dimred.stages.parent import StageOneRun
from dimred.train_step.optimizers import state_parameters
from dimred.train_step.schedule import with_cooldown
from dimred.train_step.step import TrainStep
from dimred.vectors.parameters import check_arrays, from_arrays

_log = logging.getLogger(__name__)

_PARTS_STATE = ("ema.", "loss_scale.")  # prefixes of the parameters that hold the state of a step's parts


class Cooldown(NamedTuple):
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
    """

    factor: float
    schedule: CurveName
    optimizer: OptimizerConfig
    rate: float
    updates: int
    taken_from: str
    steps_per_epoch: int | None

    @property
    def continues(self) -> bool:
        """Return whether the optimizer's state goes on from WEIGHTS."""
        return self.updates > 0

    def summary(self) -> dict[str, Any]:
        """Return all of it for ``result.json``."""
        settings = self.optimizer.model_dump(mode="json")
        return self._asdict() | {"optimizer": self.optimizer.name, "optimizer_settings": settings}


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
            f"such as {full_checkpoint_beside(parent.weights)}. Or set cooldown.optimizer.name and cooldown.rate, to "
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
    cooldown = Cooldown(config.factor, config.schedule, optimizer, rate, 0, source, steps_per_epoch)
    state = state_parameters(build_optimizer(optimizer, network, [0.0]))
    if parent.n_updates is None or (replacement is not None and not parent.names.issuperset(one.name for one in state)):
        return cooldown._replace(taken_from=f"{source}; its state begins anew")
    return cooldown._replace(updates=parent.n_updates)


def check_cooldown_state(cooldown: Cooldown, network: nn.Cell, parent: StageOneRun) -> None:
    """Check on rank 0 that the optimizer's state in WEIGHTS fits this network, if it is to go on.

    Args:
        cooldown: the cooldown as it begins.
        network: the network of stage 2.
        parent: the run that WEIGHTS come from.

    Raises:
        CheckpointError: it belongs to a different network.
    """
    if cooldown.continues and not parent.is_gone:
        check_arrays(state_parameters(build_optimizer(cooldown.optimizer, network, [0.0])), parent.arrays, parent.title)


def build_cooldown_step(
    config: StageTwoConfig,
    cooldown: Cooldown,
    parent: StageOneRun,
    network: nn.Cell,
    steps_per_epoch: int,
    ranks: Ranks = ALONE,
) -> TrainStep:
    """Build stage 2's step without a search: stage 1's step, whose rate is brought to 0.

    The optimizer goes on with its state from WEIGHTS, if these have it; then so do the loss scale and the EMA, each if
    WEIGHTS have its state. What does not go on begins anew.

    Args:
        config: configuration of stage 2.
        cooldown: the cooldown as it begins.
        parent: the run that WEIGHTS come from; rank 0 has the arrays.
        network: the network, with the weights of stage 1.
        steps_per_epoch: steps in an epoch of stage 2.
        ranks: the ranks of the job.
    """
    optimizer = build_cooldown_optimizer(cooldown, parent, network, steps_per_epoch, config.n_epochs, ranks)
    step = join_step(config, network, optimizer, ranks)
    take_over_parts(step, cooldown, parent, ranks)
    return step


def take_over_parts(step: nn.Cell, cooldown: Cooldown, parent: StageOneRun, ranks: Ranks) -> None:
    """Set the loss scale and the EMA of a step to their state from stage 1, if the optimizer's state goes on, too.

    Args:
        step: the step; a part whose state WEIGHTS lack stays as it is.
        cooldown: the cooldown as it begins.
        parent: the run that WEIGHTS come from; rank 0 has the arrays.
        ranks: the ranks of the job, all of which call this.
    """
    for prefix in _PARTS_STATE:
        part = [parameter for parameter in step.get_parameters() if parameter.name.startswith(prefix)]
        is_there = parent.names.issuperset(parameter.name for parameter in part)
        if cooldown.continues and is_there and not parent.is_gone:
            if ranks.is_rank_zero:
                from_arrays(part, parent.arrays, parent.title)
            ranks.broadcast(part)


def build_cooldown_optimizer(
    cooldown: Cooldown,
    parent: StageOneRun,
    network: nn.Cell,
    steps_per_epoch: int,
    n_epochs: int,
    ranks: Ranks = ALONE,
) -> nn.Optimizer:
    """Build stage 1's optimizer with its state; its rates fall from ``factor`` times stage 1's last rate to 0.

    Warn if stage 1's epochs had a different length. ``n_epochs`` is stage 2's; the rest is as in
    ``build_cooldown_step``.
    """
    before = cooldown.steps_per_epoch
    if ranks.rank == 0 and before not in (None, steps_per_epoch):
        _log.warning(
            f"stage 1 made {before} steps in an epoch, stage 2 makes {steps_per_epoch}, so that its rate is "
            "for batches of another size; give the batch size, the accumulation and the devices of stage 1, or set "
            "cooldown.rate"
        )
    constant = np.full(cooldown.updates + 1, cooldown.factor * cooldown.rate)
    rates = with_cooldown(constant, cooldown.updates, n_epochs * steps_per_epoch, cooldown.schedule)
    optimizer = build_optimizer(cooldown.optimizer, network, rates.tolist())
    if cooldown.continues and not parent.is_gone:
        state = state_parameters(optimizer)
        if ranks.is_rank_zero:
            from_arrays(state, parent.arrays, parent.title)
        ranks.broadcast(state)
    return optimizer
