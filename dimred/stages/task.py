"""Build the task: the network, the data, the loss to train, and the loss and the metric to measure by."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from dimred.config import DataConfig, StageConfig
from dimred.data.batches import Batches
from dimred.data.image_folder import ImageFolder, check_classes, split_folder
from dimred.data.image_tree import IMAGE_SUFFIXES, count_in_words
from dimred.data.own_dataset import OwnDataset
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, DataError, DimredError, shown
from dimred.evaluation.scores import CLASSIFICATION, Score, Scores, cross_entropy, misfit, on_host
from dimred.models.factory import CLASSES_REMEDY, call_factory, load_factory, make_cell, make_network
from dimred.models.resnet import resnet
from dimred.train_step.network_state import evaluating
from dimred.train_step.precision import with_precision

_log = logging.getLogger(__name__)

_FEWEST_TO_CHOOSE, _ENOUGH_TO_CHOOSE = 2, 50  # samples of val
_MOST_UPSCALING = 2  # of an image's side, without a warning


def build_network(config: StageConfig) -> nn.Cell:
    """Build the network with fresh weights, in the configured precision."""
    model = config.model
    if ":" in model.name:
        network = make_network(model.name, model.n_classes)
    else:
        network = resnet(model.name, model.n_classes, model.initialisation)
    return with_precision(network, **config.precision.model_dump(exclude={"jit_level", "hf32"}))


def build_splits(
    config: StageConfig, data: Path, splits: Sequence[str], *, ranks: Ranks = ALONE, val_chooses: bool = False
) -> dict[str, Batches]:
    """Build this rank's part of some splits, and check that they fit the network.

    Args:
        config: configuration of the stage.
        data: DATA, as the user typed it.
        splits: names of the splits to build.
        ranks: the ranks of the job.
        val_chooses: whether losses on ``val`` will choose between networks; a warning is logged if it is small.

    Raises:
        DataError: a split is missing or does not fit; or ``val`` is to choose and has fewer than two samples.
        ConfigError: the dataset's factory can't be found, or ``sink`` does not fit this host.
    """
    is_own, n_classes = config.data.dataset is not None, config.model.n_classes
    if not is_own and not data.is_dir():
        raise DataError(f"DATA is {str(data)!r}, which is not a folder; name the folder that holds {', '.join(splits)}")
    if not is_own and "test" in splits and not (data / "test").exists() and split_folder(data, "val").is_dir():
        raise DataError(
            f"data.eval_split is test, but there is no folder {str(data / 'test')!r}, only "
            f"{str(split_folder(data, 'val'))!r}; make it, or report on that one: --set data.eval_split=val"
        )
    images = {split: build_data(config.data, data, split, ranks, config.accumulation) for split in splits}
    if not is_own:
        check_classes(data, {split: part.classes for split, part in images.items()}, n_classes)
    for part in images.values():
        if isinstance(part, ImageFolder):
            _check_images(config.data, part)
        if isinstance(part, OwnDataset) and None in (config.loss, config.metric):
            part.check_classes(n_classes)
            part.n_classes = n_classes if config.loss is None else None
    if isinstance(first := images[splits[0]], ImageFolder):
        _warn_of_upscaling(config.data, first)
    if val_chooses:
        _check_size_of_val(images["val"].n_images)
    if config.data.workers > (most := _most_workers()):
        _log.info(f"data.workers is {config.data.workers}; MindSpore takes no more than this host's processors, {most}")
    return images


def _check_size_of_val(n_samples: int) -> None:
    """Refuse a ``val`` too small for a standard error; warn if it is so small that the error means little."""
    if n_samples < _FEWEST_TO_CHOOSE:
        raise DataError(
            f"the split 'val' chooses between networks by their losses, but has {n_samples} sample: chance alone would "
            f"choose. Give it {_FEWEST_TO_CHOOSE} at least, better some hundreds"
        )
    if n_samples < _ENOUGH_TO_CHOOSE:
        _log.warning(
            f"the split 'val' chooses between networks, and has only {n_samples} samples. What it chooses may "
            f"be worse than what it passes over; give it {_ENOUGH_TO_CHOOSE} at least, better some hundreds"
        )


def _check_images(config: DataConfig, images: ImageFolder) -> None:
    """Name what is passed over, and refuse images of a size that nothing changes, by one image of each class."""
    if images.passed_over:
        _log.warning(
            f"{str(images.folder)!r}: {count_in_words(images.passed_over)} passed over; only images in the class "
            f"folders themselves are read, and only {', '.join(IMAGE_SUFFIXES)}: convert or move them, if they belong "
            "to the data"
        )
    for size in () if config.resize else images.sizes():
        if size != (config.image_size, config.image_size):
            raise DataError(
                f"data.resize is false, but {str(images.folder)!r} has images of {size[0]} x {size[1]} pixels, and "
                f"data.image_size is {config.image_size}: unless augmented, they would reach the network as they are; "
                "--set data.resize=true"
                + (f", or data.image_size={size[0]} if all have that size" if size[0] == size[1] else "")
            )


def _warn_of_upscaling(config: DataConfig, images: ImageFolder) -> None:
    """Warn if images grow more than twofold, by one image."""
    side = min(next(images.sizes(), (config.image_size,)))
    is_scaled = config.augmentation == "random_resized_crop" or config.resize
    if is_scaled and config.image_size > _MOST_UPSCALING * side:
        _log.warning(
            f"the images have {side} pixels on the shorter side, and data.image_size is {config.image_size}: "
            f"each would be computed with about {(config.image_size / side) ** 2:.0f} times as many. To take them as "
            f"they are: --set data.image_size={side}, and a network for such images, such as model.name=resnet_small"
        )


def _most_workers() -> int:
    return os.cpu_count() or 1


def build_data(config: DataConfig, data: Path, split: str, ranks: Ranks = ALONE, accumulation: int = 1) -> Batches:
    """Build this rank's part of one split; a training batch is a group of ``accumulation`` micro-batches.

    There are no more workers than this host has processors.

    Raises:
        ConfigError: ``sink`` is set on CPU, or a factory can't be found.
        DataError: the split can't be used, see ``ImageFolder`` and ``OwnDataset``.
    """
    if config.sink and ms.get_context("device_target") != "Ascend":
        raise ConfigError("data.sink is true, but --device-target is CPU, which has no queue; --set data.sink=false")
    shared: dict[str, Any] = {"rank": ranks.rank, "group_size": ranks.group_size, "accumulation": accumulation}
    shared |= {"batch_size": config.batch_size, "workers": min(config.workers, _most_workers()), "sink": config.sink}
    if config.dataset is not None:
        return OwnDataset(load_factory(config.dataset, "data.dataset"), data, split, **shared)
    shared |= config.model_dump(include={"image_size", "mean", "std", "augmentation", "resize", "damaged"})
    return ImageFolder(split_folder(data, split), **shared)


def check_ranks(ranks: Ranks, config: StageConfig, images: Batches) -> None:
    """Check that all ranks were started alike, and that a batch can be filled; every rank calls this first.

    Raises:
        DimredError: the ranks differ.
        ConfigError: there are fewer images than a batch needs.
    """
    ranks.check_same("configuration", config.model_dump_json().encode())
    ranks.check_same("training images", f"{images.classes} {images.n_images}".encode())
    if images.steps_per_epoch == 0:
        on_each = f" on each of {ranks.group_size} ranks" if ranks.group_size > 1 else ""
        raise ConfigError(
            f"data.batch_size is {images.batch_size}{on_each}, but there are only {images.n_images} images; lower it"
        )


class _WithLoss(nn.Cell):
    """Network and loss in one cell. The last column of a batch is the labels, the others are inputs."""

    def __init__(self, network: nn.Cell, loss: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network
        self.loss = loss

    def construct(self, *batch: Tensor) -> Tensor:
        return self.loss(self.network(*batch[:-1]), batch[-1])


def build_loss(config: StageConfig, network: nn.Cell) -> nn.Cell:
    """Build a cell from inputs and labels to the scalar mean loss; by default cross entropy with label smoothing."""
    return _WithLoss(network, _mean_loss(config))


def _mean_loss(config: StageConfig) -> nn.Cell:
    if config.loss is None:
        return nn.CrossEntropyLoss(label_smoothing=config.label_smoothing)
    return make_cell(config.loss, key="loss", reduction="mean")


def build_scores(config: StageConfig) -> Scores:
    """Build the loss and the metric to measure by; by default the cross entropy that is trained, and accuracy.

    The loss is the one that is trained, including label smoothing. A network trained with smoothed labels is
    underconfident, and an average of such networks a little less so. Measured by plain cross entropy, this difference
    in calibration outweighed up to 0.9 points of accuracy on real images (tests/benchmarks/choice_study.md).

    Raises:
        ConfigError: a factory can't be imported or called, or makes something else.
    """
    loss: Score
    metric = CLASSIFICATION.metric
    if config.loss is None:
        loss = partial(cross_entropy, label_smoothing=config.label_smoothing)
    else:
        loss = make_cell(config.loss, key="loss", reduction="none")
    if config.metric is not None:
        metric = call_factory(config.metric, key="metric")
        if not callable(metric):
            raise ConfigError(
                f"metric is {config.metric!r}, which returned {type(metric).__name__}; it must return a function or a "
                "cell (outputs, labels) -> one number for each item"
            )
    return Scores(loss, metric)


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
    measured = [("loss", config.loss, scores.loss), ("metric", config.metric, scores.metric)]
    for split, tried in (("train", [("loss", config.loss, mean_loss)]), (config.data.eval_split, measured)):
        *inputs, labels = next(images[split].evaluation().create_tuple_iterator(num_epochs=1))
        where = f"the first batch of {split!r} (inputs {_shapes(inputs)}"
        with evaluating(network):
            outputs = _called("model.name", config.model.name, where, network, *inputs)
        where += f", outputs {_shapes(outputs if isinstance(outputs, tuple | list) else [outputs])}"
        where += f", labels {labels.dtype} {labels.shape}"
        if None in (config.loss, config.metric):
            _check_outputs(config, outputs, where)
        for key, name, score in tried:
            shape = _called(key, name, where, _shape_of, score, outputs, labels)
            wrong = misfit(shape, outputs, labels)
            if score is mean_loss:
                wrong = f"the shape {shape} with reduction='mean'; it must be one number, ()" if shape else None
            if wrong:
                raise ConfigError(f"{key} is {name!r}, which on {where}) gives {wrong}")


def _check_outputs(config: StageConfig, outputs: Any, where: str) -> None:
    """Refuse logits for another number of classes than ``model.n_classes``; other misfits are the scores' to name."""
    given, wanted = [*getattr(outputs, "shape", ())], config.model.n_classes
    if len(given) > 1 and given[1] != wanted:
        raise ConfigError(
            f"model.name is {config.model.name!r}, which on {where}) gives {given[1]} outputs, but model.n_classes is "
            f"{wanted}; {CLASSES_REMEDY}, or --set model.n_classes={given[1]} if these are the classes"
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
    found = score(outputs, labels)
    values, counted = found if isinstance(found, tuple) else (found, True)
    return np.broadcast_shapes(on_host(values).shape, np.shape(on_host(counted)))


def _shapes(parts: Sequence[Tensor]) -> str:
    return " and ".join(str(part.shape) for part in parts)
