"""The steps of both stages, with their parts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import nn

from dimred.build.loss_and_metric import build_loss
from dimred.config import (
    LossScaleConfig,
    OptimizerConfig,
    ScheduleConfig,
    SearchOptions,
    StageConfig,
    StageOneConfig,
    StageTwoConfig,
)
from dimred.distributed.ranks import ALONE, Ranks
from dimred.search.basis_check import Basis
from dimred.search.step import SubspaceTrainStep
from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.loss_scale import DynamicLossScale, NoLossScale, StaticLossScale
from dimred.train_step.optimizers import decays, make_optimizer
from dimred.train_step.schedule import make_rates, with_cooldown
from dimred.train_step.step import TrainStep


def build_parts(config: StageConfig, network: nn.Cell) -> dict[str, Any]:
    """The parts that both steps take, by the names of their arguments; None where a part is off."""
    clipping, ema = config.clipping, config.ema
    return {
        "loss_scale": build_loss_scale(config.loss_scale),
        "micro_batch_size": config.data.batch_size if config.accumulation > 1 else None,
        "clipping": None
        if clipping.norm is None and clipping.value is None
        else Clipping(clipping.norm, clipping.value),
        "ema": None if ema.decay is None else EMA(network, ema.decay, ema.ramp),
    }


def build_loss_scale(config: LossScaleConfig) -> NoLossScale | None:
    """The loss scale; None for none."""
    if config.name == "none":
        return None
    if config.name == "static":
        return StaticLossScale(1024.0 if config.scale is None else config.scale, config.drop_overflow)
    initial = 2.0**16 if config.scale is None else config.scale
    return DynamicLossScale(initial, config.factor, config.window, config.smallest, config.largest)


def build_rates(schedule: ScheduleConfig, steps_per_epoch: int, n_epochs: int = 0) -> np.ndarray:
    """The learning rate of each update; ``n_epochs``: of the run, which a constant rate must last for."""
    rates = make_rates(
        schedule.name,
        schedule.peak,
        schedule.warmup_epochs * steps_per_epoch,
        schedule.horizon(n_epochs) * steps_per_epoch,
        [epoch * steps_per_epoch for epoch in schedule.milestones],
        schedule.step_factor,
    )
    if schedule.cooldown is None:
        return rates
    return with_cooldown(
        rates, schedule.cooldown.after_epoch * steps_per_epoch, schedule.cooldown.epochs * steps_per_epoch
    )


def build_optimizer(config: OptimizerConfig, network: nn.Cell, rates: float | Sequence[float]) -> nn.Optimizer:
    """The optimizer of the network's trainable weights, with its decay groups."""
    return make_optimizer(config.name, network.trainable_params(), rates, **config.model_dump(exclude={"name"}))


def build_train_step(config: StageOneConfig, network: nn.Cell, steps_per_epoch: int, ranks: Ranks = ALONE) -> TrainStep:
    """Stage 1's step: loss, optimizer with its decay groups and schedule, and the parts."""
    rates = build_rates(config.schedule, steps_per_epoch, config.epochs).tolist()
    optimizer = build_optimizer(config.optimizer, network, rates)
    return TrainStep(build_loss(config, network), optimizer, reduce=ranks.mean(), **build_parts(config, network))


def build_search_step(
    config: StageTwoConfig,
    network: nn.Cell,
    basis: Basis | None,
    steps_per_epoch: int,
    ranks: Ranks = ALONE,
    optimizer: nn.Optimizer | None = None,
) -> SubspaceTrainStep:
    """Stage 2's step. The rate of ``sgd`` and ``average`` stays, or falls linearly to 0 at the end.

    ``optimizer`` is that of the continued residual, see ``dimred.build.continuation``.
    """
    options = {name: getattr(config, name) for name in SearchOptions.model_fields}
    if config.learning_rate_schedule == "linear":
        options["learning_rate"] = make_rates("linear", config.learning_rate, 0, config.n_epochs * steps_per_epoch)
    options["weight_decay"] = [
        config.weight_decay if decays(weight, config.no_decay) else 0.0 for weight in network.trainable_params()
    ]
    parts = build_parts(config, network)
    return SubspaceTrainStep(build_loss(config, network), basis, optimizer=optimizer, ranks=ranks, **parts, **options)
