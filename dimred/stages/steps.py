"""Build stage 1's step, and the parts of the steps of both stages."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import nn

from dimred.config import (
    LossScaleConfig,
    OptimizerConfig,
    ScheduleConfig,
    StageConfig,
    StageOneConfig,
)
from dimred.distributed.ranks import ALONE, Ranks
from dimred.models.factory import load_factory
from dimred.stages.loss_and_metric import build_loss
from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale, StaticLossScale
from dimred.train_step.optimizers import make_optimizer
from dimred.train_step.schedule import make_rates
from dimred.train_step.step import TrainStep


def build_parts(config: StageConfig, network: nn.Cell) -> dict[str, Any]:
    """Build the parts of a step, by the names of its arguments; None for a part that is off."""
    clipping, ema = config.clipping, config.ema
    return {
        "loss_scale": build_loss_scale(config.loss_scale),
        "micro_batch_size": config.data.batch_size if config.accumulation > 1 else None,
        "clipping": None if clipping.norm is None else Clipping(clipping.norm),
        "ema": None if ema.decay is None else EMA(network, ema.decay, ema.ramp),
    }


def build_loss_scale(config: LossScaleConfig) -> StaticLossScale | None:
    """Build the loss scale; None if it is off."""
    if config.name == "none":
        return None
    if config.name == "static":
        return StaticLossScale(1024.0 if config.scale is None else config.scale, config.drop_overflow)
    initial = 2.0**16 if config.scale is None else config.scale
    return DynamicLossScale(initial, config.factor, config.window, config.smallest, config.largest)


def build_rates(schedule: ScheduleConfig, steps_per_epoch: int, n_epochs: int) -> np.ndarray:
    """Make the learning rate of each update.

    Args:
        schedule: schedule of stage 1.
        steps_per_epoch: updates in an epoch.
        n_epochs: length of the run, which a constant rate covers; other schedules have a length of their own.

    Returns:
        (n_updates,) float32.
    """
    return make_rates(
        schedule.name,
        schedule.peak,
        schedule.warmup_epochs * steps_per_epoch,
        schedule.horizon(n_epochs) * steps_per_epoch,
        [epoch * steps_per_epoch for epoch in schedule.milestones],
        schedule.step_factor,
    )


def build_optimizer(config: OptimizerConfig, network: nn.Cell, rates: float | Sequence[float]) -> nn.Optimizer:
    """Build the optimizer of the network's trainable weights, with its decay groups; a user's own by its factory.

    Raises:
        ConfigError: an option does not go with the optimizer, or a user's own can't be found or used.
    """
    factory = load_factory(config.name, "optimizer.name") if ":" in config.name else None
    options = config.model_dump(exclude={"name"})
    return make_optimizer(config.name, network.trainable_params(), rates, factory=factory, **options)


def build_train_step(config: StageOneConfig, network: nn.Cell, steps_per_epoch: int, ranks: Ranks = ALONE) -> TrainStep:
    """Build stage 1's step: loss, optimizer with its decay groups and schedule, and the parts."""
    rates = build_rates(config.schedule, steps_per_epoch, config.epochs).tolist()
    return join_step(config, network, build_optimizer(config.optimizer, network, rates), ranks)


def join_step(config: StageConfig, network: nn.Cell, optimizer: nn.Optimizer, ranks: Ranks) -> TrainStep:
    """Join loss, optimizer and parts into a step, for either stage."""
    parts = build_parts(config, network)
    return TrainStep(build_loss(config, network), optimizer, reduce=ranks.mean(), ballot=ranks.ballot(), **parts)
