"""A stage's task: its network, data, loss and metrics; built and checked in one place."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from mindspore import nn

from dimred.config import StageConfig
from dimred.data.batches import Batches
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, DataError, Problems
from dimred.evaluation.evaluator import Evaluator
from dimred.evaluation.measures import Scores
from dimred.launch.channel import tell_alive
from dimred.models.built_in import BUILT_IN, make_named
from dimred.run_files.metric import Metric, metrics_of
from dimred.runs.score_checks import check_scores
from dimred.runs.splits import build_splits
from dimred.runs.steps import build_scores
from dimred.train_step.precision import with_precision

Config = TypeVar("Config", bound=StageConfig)

_OF_NETWORK = {"level", "dtype", "keep_batch_norm", "casts"}  # keys of ``precision``; the others are for the device


@dataclass(frozen=True, eq=False)
class Task(Generic[Config]):
    """The network, data, loss and metrics that a stage works on; ``build_task`` makes it.

    Attributes:
        config: the configuration.
        data: DATA, as the user typed it.
        ranks: the ranks of the job.
        network: the network, in the configured precision.
        images: split -> this rank's part of it.
        scores: loss and metrics to measure by.
        problems: the problems with it so far. A stage's checks add theirs, and then report all at once.
    """

    config: Config
    data: Path
    ranks: Ranks
    network: nn.Cell
    images: dict[str, Batches]
    scores: Scores
    problems: Problems

    @property
    def training_batches(self) -> Batches:
        """Return the split ``train``; the steps take its batches."""
        return self.images["train"]

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """Return the shape of a sample's input; None if it takes a sample to know, or without ``images``."""
        return next((part.input_shape for part in self.images.values()), None)

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of steps in an epoch."""
        return self.training_batches.steps_per_epoch

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the metrics that are reported, the main one first."""
        return metrics_of(self.config.metric, self.config.model.n_classes)

    @cached_property
    def evaluator(self) -> Evaluator:
        """Return the evaluator that measures the network on the splits."""
        return Evaluator(
            self.network,
            self.images,
            self.scores,
            seed=self.config.seed,
            n_batches=self.config.reestimate_batches,
            ranks=self.ranks,
            at_batch=tell_alive,
        )

    def check(self) -> None:
        """Check that all ranks were started alike, that a batch can be filled, and that loss and metric work.

        All ranks call this. It changes nothing except that it gives all ranks rank 0's network.

        Raises:
            DimredError: the ranks differ.
            ConfigError: there are fewer images than a batch needs; or network, loss or metric can't be used.
            DataError: the built-in loss or metric can't use the labels.
        """
        if "train" in self.images:
            _check_ranks(self.ranks, self.config, self.training_batches)
        if self.config.has_own_parts:
            check_scores(self.config, self.network, self.scores, self.images)
        # A user's own network may draw its weights from another generator.
        self.ranks.broadcast(list(self.network.get_parameters()))

    def shortened(self, config: Config) -> "Task[Config]":
        """Return the task with this configuration, the same network, and each split shortened to one step."""
        images = {split: batches.shortened(1) for split, batches in self.images.items()}
        return replace(self, config=config, images=images)


def build_task(
    config: Config,
    data: Path,
    ranks: Ranks = ALONE,
    *,
    splits: Collection[str] | None = None,
    is_checked: bool = True,
) -> Task[Config]:
    """Build network, splits, loss and metric from a configuration, and check that they fit each other.

    Args:
        config: the configuration of either stage.
        data: DATA, as the user typed it.
        ranks: the ranks of the job.
        splits: names of the splits; by default the ones that a run of the stage reads.
        is_checked: whether to check the task here. Otherwise a problem with the data is kept in ``Task.problems``; the
            caller reports it with others, and then calls ``Task.check``.

    Returns:
        The task; without images if there is a problem with the data.

    Raises:
        ConfigError, DataError: network, data, loss or metric can't be made, or don't fit; see ``build_splits``.
    """
    names = sorted(splits or config.splits)
    val_chooses = splits is None and config.uses_val
    network = build_network(config)
    scores = build_scores(config)
    ranks.separate_masks(network)

    def splits_of_task() -> dict[str, Batches]:
        images = build_splits(config, data, names, ranks=ranks, val_chooses=val_chooses)
        for part in images.values():
            _check_input(config.model.name, part)
        return images

    problems = Problems()
    images = splits_of_task() if is_checked else problems.collect(splits_of_task) or {}
    task = Task(config, data, ranks, network, images, scores, problems)
    if is_checked:
        task.check()
    return task


def build_network(config: StageConfig) -> nn.Cell:
    """Build the network with fresh weights, in the configured precision.

    Raises:
        ConfigError: a user's own network can't be made, or the precision does not fit the network or device.
    """
    model = config.model
    network = make_named(model.name, model.n_classes, model.initialisation)
    is_converted = config.precision.level != "O0" or config.precision.casts
    return _in_precision(network, config) if is_converted else network


def _check_input(name: str, images: Batches) -> None:
    """Check that a built-in network takes the images; ``Task.check`` tries any other on the first batch.

    Raises:
        DataError: it doesn't.
    """
    if name not in BUILT_IN or images.input_shape is None:
        return
    n_channels, height, width = images.input_shape
    if expected := BUILT_IN[name].misfit(images.input_shape):
        raise DataError(
            f"model.name is {name!r}, which takes {expected}, but the data give {n_channels} x {height} x {width}; set "
            "data.image_size, and give data.mean and data.std one value for each channel"
        )


def _in_precision(network: nn.Cell, config: StageConfig) -> nn.Cell:
    try:
        return with_precision(network, **config.precision.model_dump(include=_OF_NETWORK))
    except ConfigError as error:  # it names its own arguments
        raise ConfigError(f"precision.{error}") from error


def _check_ranks(ranks: Ranks, config: StageConfig, images: Batches) -> None:
    """Check that all ranks were started alike, and that a batch can be filled; every rank calls this."""
    ranks.check_same("configuration", config.model_dump_json().encode())
    ranks.check_same("training images", f"{images.classes} {images.n_images}".encode())
    if images.steps_per_epoch == 0:
        on_each = f" on each of {ranks.group_size} ranks" if ranks.group_size > 1 else ""
        raise ConfigError(
            f"data.batch_size is {images.batch_size}{on_each}, but there are only {images.n_images} images; lower it"
        )
