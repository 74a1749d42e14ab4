"""Build the loss, the metric and the parts of the steps of both stages: here strings become objects."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from dimred.config import (
    NO_DECAY_PATTERNS,
    LossScaleConfig,
    OptimizerConfig,
    ScheduleConfig,
    StageConfig,
    StageOneConfig,
)
from dimred.data.batches import Batches
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, DimredError, shown
from dimred.evaluation.scores import Score, Scores, copies, cross_entropy, is_among_five, is_correct, misfit, on_host
from dimred.io.metric import ACCURACY, TOP5, metrics_of
from dimred.models.factory import CLASSES_REMEDY, call_factory, load_factory, make_cell
from dimred.train_step.modes import evaluating
from dimred.train_step.optimizers import decays, make_optimizer
from dimred.train_step.part import StepPart
from dimred.train_step.schedule import make_rates
from dimred.train_step.step import TrainStep

_log = logging.getLogger(__name__)


def build_parts(config: StageConfig, network: nn.Cell) -> dict[str, Any]:
    """Build the optional parts of a step, each from its section; a part that is off is left out.

    Args:
        config: configuration of either stage.
        network: the network that the EMA averages.

    Returns:
        ``parts`` and ``micro_batch_size``, arguments of both steps.
    """
    parts: list[StepPart] = []
    if config.clipping.norm is not None:
        from dimred.train_step.clipping import Clipping

        parts.append(Clipping(config.clipping.norm))
    if config.ema.decay is not None:
        from dimred.train_step.ema import EMA

        parts.append(EMA(network, config.ema.decay, config.ema.ramp))
    if config.loss_scale.name != "none":
        parts.append(_loss_scale(config.loss_scale))
    return {"parts": parts, "micro_batch_size": config.data.batch_size if config.accumulation > 1 else None}


def _loss_scale(config: LossScaleConfig) -> StepPart:
    """Build the loss scale from its section, which asks for one."""
    from dimred.train_step.loss_scale import DynamicLossScale, StaticLossScale

    if config.name == "static":
        return StaticLossScale(1024.0 if config.scale is None else config.scale, config.drop_overflow)
    first = 2.0**16 if config.scale is None else config.scale
    return DynamicLossScale(first, config.factor, config.window, config.smallest, config.largest)


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

    Args:
        config: the section ``optimizer``.
        network: the network.
        rates: the learning rate, or one for each update.

    Raises:
        ConfigError: an option does not go with the optimizer, or a user's own can't be found or used.
    """
    factory = load_factory(config.name, "optimizer.name") if ":" in config.name else None
    options = config.model_dump(exclude={"name"})
    return make_optimizer(config.name, network.trainable_params(), rates, factory=factory, **options)


def warn_of_idle_patterns(config: OptimizerConfig, network: nn.Cell) -> None:
    """Warn of each pattern of ``no_decay`` that matches no weight; not of the defaults, which fit most networks."""
    weights = network.trainable_params()
    for pattern in config.no_decay if config.weight_decay else ():
        if pattern not in NO_DECAY_PATTERNS and all(decays(weight, [pattern]) for weight in weights):
            _log.warning(f"optimizer.no_decay has {pattern!r}, which matches no weight, such as {weights[0].name!r}")


def build_train_step(config: StageOneConfig, network: nn.Cell, steps_per_epoch: int, ranks: Ranks = ALONE) -> TrainStep:
    """Build stage 1's step: loss, optimizer with its decay groups and schedule, and the parts.

    Args:
        config: configuration of stage 1.
        network: the network, without its loss.
        steps_per_epoch: steps in an epoch, by which the schedule counts.
        ranks: the ranks of the job.

    Raises:
        ConfigError: the optimizer can't be built, see ``build_optimizer``, or the loss can't, see ``build_loss``.
    """
    rates = build_rates(config.schedule, steps_per_epoch, config.epochs).tolist()
    return join_step(config, network, build_optimizer(config.optimizer, network, rates), ranks)


def join_step(config: StageConfig, network: nn.Cell, optimizer: nn.Optimizer, ranks: Ranks) -> TrainStep:
    """Join the network, its loss, the optimizer and the parts into a training step, for either stage.

    Args:
        config: configuration of the stage; names the loss and the parts.
        network: the network, without its loss.
        optimizer: the optimizer of its trainable weights.
        ranks: the ranks of the job, whose gradients are averaged and which vote on each step.

    Raises:
        ConfigError: the loss can't be built, see ``build_loss``, or the parts do not go together, see ``TrainStep``.
    """
    parts = build_parts(config, network)
    return TrainStep(build_loss(config, network), optimizer, ranks=ranks, ballot=ranks.ballot(), **parts)


_BUILT_IN = {ACCURACY: is_correct, TOP5: is_among_five}


class _WithLoss(nn.Cell):
    """Network and loss in one cell. The last column of a batch is the labels, the others are inputs."""

    def __init__(self, network: nn.Cell, loss: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network
        self.loss = loss

    def construct(self, *batch: Tensor) -> Tensor:
        return self.loss(self.network(*batch[:-1]), batch[-1])


def build_loss(config: StageConfig, network: nn.Cell) -> nn.Cell:
    """Build a cell from inputs and labels to the mean loss; by default cross entropy with label smoothing.

    A user's own loss may give a pair (sum, count) in place of the mean, see ``TrainStep``.

    Raises:
        ConfigError: a user's own loss can't be found or made.
    """
    return _WithLoss(network, _mean_loss(config))


def _mean_loss(config: StageConfig) -> nn.Cell:
    if config.loss is None:
        return nn.CrossEntropyLoss(label_smoothing=config.label_smoothing)
    return make_cell(config.loss, key="loss", reduction="mean")


def build_scores(config: StageConfig) -> Scores:
    """Build the loss and the metric to measure by; by default the cross entropy that is trained, and ``metrics_of``.

    The loss is the one that is trained, including label smoothing. A network trained with smoothed labels is
    underconfident, and an average of such networks a little less so. Measured by plain cross entropy, this difference
    in calibration outweighed up to 0.9 points of accuracy on real images (tests/studies/choice.md).

    Args:
        config: configuration of either stage.

    Raises:
        ConfigError: a factory can't be imported or called, or makes something else.
    """
    loss: Score
    if config.loss is None:
        loss = partial(cross_entropy, label_smoothing=config.label_smoothing)
    else:
        loss = make_cell(config.loss, key="loss", reduction="none")
    if config.metric is None:
        return Scores(loss, tuple(_BUILT_IN[metric] for metric in metrics_of(None, config.model.n_classes)))
    metric = call_factory(config.metric, key="metric")
    if not callable(metric):
        raise ConfigError(
            f"metric is {config.metric!r}, which returned {type(metric).__name__}; it must return a function or a "
            "cell (outputs, labels) -> one number for each item"
        )
    return Scores(loss, (metric,))


def check_scores(config: StageConfig, network: nn.Cell, scores: Scores, images: Mapping[str, Batches]) -> None:
    """Try loss and metric on the first batch of each split that they will be used on; change nothing.

    Every rank that has samples of both splits tries them, because work on rank 0 alone may not call a cell (see
    ``Ranks.run_on_rank_zero``). Nothing is tried if network, data, loss and metric are all built in.

    Args:
        config: names network, loss and metric in the errors.
        network: the network in its present state.
        scores: what ``build_scores`` made.
        images: the splits by name: ``train`` and the evaluation split.

    Raises:
        ConfigError: network, loss or metric fails, or returns something that it must not; or the number of outputs
            is not that of the classes, which the built-in loss and metric need.
        DataError: the built-in loss or metric can't use the labels.
    """
    if ":" not in config.model.name and config.data.dataset is config.loss is config.metric is None:
        return
    if min(images[split].n_images for split in ("train", config.data.eval_split)) <= images["train"].rank:
        return
    mean_loss = _mean_loss(config)
    metrics = [("metric", config.metric, metric) for metric in scores.metrics]
    scores_of_both = [("loss", config.loss, scores.loss), *metrics]
    for split, of_split in (("train", [("loss", config.loss, mean_loss)]), (config.data.eval_split, scores_of_both)):
        *inputs, labels = next(images[split].evaluation().create_tuple_iterator(num_epochs=1))
        where = f"the first batch of {split!r} (inputs {_shapes(inputs)}"
        with evaluating(network):
            outputs = _called("model.name", config.model.name, where, network, *inputs)
        where += f", outputs {_shapes(outputs if isinstance(outputs, tuple | list) else [outputs])}"
        where += f", labels {labels.dtype} {labels.shape}"
        if None in (config.loss, config.metric):
            _check_outputs(config, outputs, where)
        for key, name, score in of_split:
            shape = _called(key, name, where, _shape_of, score, outputs, labels)
            wrong = misfit(shape, outputs, labels)
            if score is mean_loss:
                wrong = f"the shape {shape} with reduction='mean'; it must be one number, ()" if shape else None
            if wrong:
                raise ConfigError(f"{key} is {name!r}, which on {where}) gives {wrong}")


def _check_outputs(config: StageConfig, outputs: Any, where: str) -> None:
    """Check that there are as many outputs as ``model.n_classes``; the scores check everything else."""
    shape, n_classes = [*getattr(outputs, "shape", ())], config.model.n_classes
    if len(shape) > 1 and shape[1] != n_classes:
        raise ConfigError(
            f"model.name is {config.model.name!r}, which on {where}) gives {shape[1]} outputs, but model.n_classes is "
            f"{n_classes}; {CLASSES_REMEDY}, or --set model.n_classes={shape[1]} if these are the classes"
        )


def _called(key: str, name: str | None, where: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function; raise ConfigError if it fails."""
    try:
        return function(*arguments)
    except DimredError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {shown(str(error), 300)}"
        raise ConfigError(f"{key} is {name!r}, which fails on {where}): {why}") from error


def _shape_of(score: Score, outputs: Any, labels: Tensor) -> tuple[int, ...]:
    """Return the shape of the values that a loss or a metric gives."""
    result = score(copies(outputs), copies(labels))
    values, is_counted = result if isinstance(result, tuple) else (result, True)
    return np.broadcast_shapes(on_host(values).shape, np.shape(on_host(is_counted)))


def _shapes(parts: Sequence[Tensor]) -> str:
    return " and ".join(str(part.shape) for part in parts)
