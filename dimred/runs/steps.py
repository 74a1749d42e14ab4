"""Build the loss, the metric and the parts of both stages' steps from their names in the configuration."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from dimred.config import (
    NO_DECAY_PATTERNS,
    EmaConfig,
    LossScaleConfig,
    OptimizerConfig,
    ScheduleConfig,
    StageConfig,
    StageOneConfig,
)
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError
from dimred.evaluation.measures import MeanOfItems, Measure, OfWholeSplit, Scores
from dimred.evaluation.scores import Score, cross_entropy, is_among_five, is_correct
from dimred.factories import call_factory, load_factory
from dimred.models.factory import make_cell
from dimred.run_files.metric import ACCURACY, TOP5, metrics_of
from dimred.runs.device import compile_at
from dimred.train_step.clipping import Clipping
from dimred.train_step.ema import EMA
from dimred.train_step.interval_mean import IntervalMean
from dimred.train_step.loss_scale import DynamicLossScale, StaticLossScale
from dimred.train_step.optimizers import decays, make_optimizer
from dimred.train_step.part import StepPart
from dimred.train_step.schedule import make_rates
from dimred.train_step.step import TrainStep

_log = logging.getLogger(__name__)


def build_parts(config: StageConfig, network: nn.Cell) -> dict[str, Any]:
    """Build the optional parts of either stage's step from their sections; a part that is off is left out.

    Returns:
        ``parts`` and ``micro_batch_size``, arguments of both steps.
    """
    parts: list[StepPart] = []
    if config.clipping.norm is not None:
        parts.append(Clipping(config.clipping.norm))
    if config.ema.is_on:
        parts.append(_average(config.ema, network))
    if config.loss_scale.name != "none":
        parts.append(_loss_scale(config.loss_scale))
    return {"parts": parts, "micro_batch_size": config.data.batch_size if config.accumulation > 1 else None}


def _average(config: EmaConfig, network: nn.Cell) -> StepPart:
    """Build the moving average from its section."""
    if config.decay is None:
        return EMA(network, half_life=config.half_life)
    return EMA(network, config.decay, config.ramp)


def _loss_scale(config: LossScaleConfig) -> StepPart:
    """Build the loss scale from its section."""
    if config.name == "static":
        return StaticLossScale(1024.0 if config.scale is None else config.scale, config.drop_overflow)
    first = 2.0**16 if config.scale is None else config.scale
    return DynamicLossScale(first, config.factor, config.window, config.smallest, config.largest)


def build_rates(schedule: ScheduleConfig, steps_per_epoch: int, n_epochs: int) -> np.ndarray:
    """Make the learning rate of each update.

    Args:
        schedule: stage 1's schedule.
        steps_per_epoch: updates in an epoch.
        n_epochs: length of the run, and of a constant rate; other schedules set their own length.

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
    """Build the optimizer for the network's trainable weights, with decay groups; a user's own comes from its factory.

    Args:
        config: the section ``optimizer``.
        network: the network.
        rates: the learning rate, or one for each update.

    Raises:
        ConfigError: an option does not go with the optimizer, or a user's own can't be found or used.
    """
    factory = None
    if ":" in config.name:
        factory = load_factory(config.name, "optimizer.name")
    options = config.model_dump(exclude={"name"})
    return make_optimizer(config.name, network.trainable_params(), rates, factory=factory, **options)


def warn_of_idle_patterns(config: OptimizerConfig, network: nn.Cell) -> None:
    """Warn of each ``no_decay`` pattern that matches no weight; a default pattern may match none."""
    weights = network.trainable_params()
    for pattern in config.no_decay if config.weight_decay else ():
        if pattern not in NO_DECAY_PATTERNS and all(decays(weight, [pattern]) for weight in weights):
            _log.warning(
                f"optimizer.no_decay has {pattern!r}, which matches no weight; weights have names such as "
                f"{weights[0].name!r}"
            )


def build_train_step(config: StageOneConfig, network: nn.Cell, steps_per_epoch: int, ranks: Ranks = ALONE) -> TrainStep:
    """Build stage 1's step for a network without its loss: loss, optimizer with decay groups and schedule, and parts.

    Raises:
        ConfigError: the optimizer can't be built (see ``build_optimizer``), or the loss can't (see ``build_loss``).
    """
    rates = build_rates(config.schedule, steps_per_epoch, config.epochs).tolist()
    optimizer = build_optimizer(config.optimizer, network, rates)
    means = [IntervalMean(network)] if config.snapshots.content == "mean" else []
    return join_step(config, network, optimizer, ranks, means)


def join_step(
    config: StageConfig,
    network: nn.Cell,
    optimizer: nn.Optimizer,
    ranks: Ranks,
    more_parts: Sequence[StepPart] = (),
) -> TrainStep:
    """Join network, loss, optimizer and parts into a training step, for either stage.

    Args:
        config: has the sections of the usual parts.
        network: the network without its loss.
        optimizer: the optimizer of its trainable weights.
        ranks: the job's ranks.
        more_parts: parts that have no section.

    Raises:
        ConfigError: the loss can't be built (see ``build_loss``), or the parts do not fit together (see ``TrainStep``).
    """
    options = build_parts(config, network)
    options["parts"] = [*options["parts"], *more_parts]
    step = TrainStep(build_loss(config, network), optimizer, ranks=ranks, ballot=ranks.ballot(), **options)
    compile_at(config.precision.jit_level, step)
    return step


_BUILT_IN = {ACCURACY: is_correct, TOP5: is_among_five}


class _WithLoss(nn.Cell):
    """Network and loss in one cell. A batch's last column is the labels; the others are inputs."""

    def __init__(self, network: nn.Cell, loss: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network
        self.loss = loss

    def construct(self, *batch: Tensor) -> Tensor:
        return self.loss(self.network(*batch[:-1]), batch[-1])


def build_loss(config: StageConfig, network: nn.Cell) -> nn.Cell:
    """Build a cell that maps inputs and labels to the mean loss; by default cross entropy with label smoothing.

    A user's own loss may return a pair (sum, count) instead of the mean; see ``TrainStep``.

    Raises:
        ConfigError: a user's own loss can't be found or made.
    """
    return _WithLoss(network, mean_loss(config))


def mean_loss(config: StageConfig) -> nn.Cell:
    """Build a cell that maps outputs and labels to the mean loss; see ``build_loss``."""
    if config.loss is None:
        return nn.CrossEntropyLoss(label_smoothing=config.label_smoothing)
    return _own_loss(config.loss, "mean")


def _own_loss(name: str, reduction: str) -> nn.Cell:
    return make_cell(name, key="loss", reduction=reduction)


def build_scores(config: StageConfig) -> Scores:
    """Build the loss and metrics to measure by; by default the training cross entropy, and ``metrics_of``.

    The loss is the training loss, including label smoothing. A network trained with smoothed labels is
    underconfident, and an average of such networks a little less so. Measured by plain cross entropy, this difference
    in calibration outweighed up to 0.9 points of accuracy on real images (tests/studies/choice.md).

    Raises:
        ConfigError: a factory can't be imported or called, or returns the wrong kind of object.
    """
    loss: Score = partial(cross_entropy, label_smoothing=config.label_smoothing)
    if config.loss is not None:
        loss = _own_loss(config.loss, "none")
    if config.metric is not None:
        return Scores(loss, (_own_metric(config.metric),))
    return Scores(loss, tuple(MeanOfItems(_BUILT_IN[metric]) for metric in metrics_of(None, config.model.n_classes)))


def _own_metric(name: str) -> Measure[float]:
    """Make a user's own metric; if its attribute ``whole_split`` is true, it gets all outputs and labels at once."""
    metric: Any = call_factory(name, key="metric")
    if not callable(metric):
        raise ConfigError(
            f"metric is {name!r}, which returned {type(metric).__name__}; it must return a function or a cell "
            "(outputs, labels) -> one number for each item"
        )
    return OfWholeSplit(metric) if getattr(metric, "whole_split", False) else MeanOfItems(metric)
