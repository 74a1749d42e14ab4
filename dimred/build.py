"""Configuration -> cells and data: the last place that sees a configuration."""

from pathlib import Path

from mindspore import nn

from dimred.config import DataConfig, StageConfig, StageOneConfig, StageTwoConfig
from dimred.data.image_folder import ImageFolder
from dimred.models.resnet import resnet
from dimred.search.cell import Basis, SubspaceTrainStep
from dimred.train_step.decay_groups import decay_groups, decays
from dimred.train_step.schedule import warmup_then_linear, with_cooldown
from dimred.train_step.step import TrainStep


def build_network(config: StageConfig) -> nn.Cell:
    """The network with fresh weights."""
    return resnet(config.model.name, config.model.n_classes, config.model.initialisation)


def build_data(config: DataConfig, data: Path, split: str) -> ImageFolder:
    """One split of the data."""
    return ImageFolder(
        data / split,
        image_size=config.image_size,
        batch_size=config.batch_size,
        mean=config.mean,
        std=config.std,
        augmentation=config.augmentation,
        resize=config.resize,
        workers=config.workers,
    )


def build_loss(config: StageConfig, network: nn.Cell) -> nn.Cell:
    """Images, labels -> mean cross entropy with label smoothing."""
    return nn.WithLossCell(network, nn.CrossEntropyLoss(label_smoothing=config.label_smoothing))


def build_train_step(config: StageOneConfig, network: nn.Cell, steps_per_epoch: int) -> TrainStep:
    """Stage 1's step: loss, momentum, weight-decay groups, schedule."""
    schedule = config.schedule
    rates = warmup_then_linear(
        schedule.peak, schedule.warmup_epochs * steps_per_epoch, schedule.total_epochs * steps_per_epoch
    )
    if schedule.cooldown is not None:
        after = schedule.cooldown.after_epoch * steps_per_epoch
        rates = with_cooldown(rates, after, schedule.cooldown.epochs * steps_per_epoch)
    groups = decay_groups(network.trainable_params(), config.optimizer.weight_decay)
    optimizer = nn.Momentum(groups, rates.tolist(), config.optimizer.momentum)
    return TrainStep(build_loss(config, network), optimizer)


def build_search_step(
    config: StageTwoConfig, network: nn.Cell, basis: Basis, steps_per_epoch: int
) -> SubspaceTrainStep:
    """Stage 2's step. The rate of ``sgd`` and ``average`` stays, or falls linearly to 0 at the end."""
    n_steps = config.epochs * steps_per_epoch
    falls = config.learning_rate_schedule == "linear"
    return SubspaceTrainStep(
        build_loss(config, network),
        basis,
        rho=config.rho,
        gamma=config.gamma,
        alpha=config.alpha,
        sigma=config.sigma,
        n_components=config.n_components,
        max_trials=config.max_trials,
        search=config.search,
        curvature_pair=config.curvature_pair,
        damping=config.damping,
        initial_scaling=config.initial_scaling,
        max_step=config.max_step,
        max_rejected_steps=config.max_rejected_steps,
        learning_rate=warmup_then_linear(config.learning_rate, 0, n_steps) if falls else config.learning_rate,
        momentum=config.momentum,
        weight_decay=[config.weight_decay if decays(weight) else 0.0 for weight in network.trainable_params()],
    )
