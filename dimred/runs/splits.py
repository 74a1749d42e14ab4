"""The splits of DATA as batches: built for this rank, and checked against each other and the network."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mindspore as ms

from dimred.config import DataConfig, StageConfig
from dimred.data.batches import Batches
from dimred.data.image_folder import ImageFolder, check_classes, check_splits, split_folder
from dimred.data.image_tree import IMAGE_SUFFIXES, count_in_words
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, DataError
from dimred.factories import load_factory

_log = logging.getLogger(__name__)

_FEWEST_TO_CHOOSE, _ENOUGH_TO_CHOOSE = 2, 50  # samples of val
_WORKERS = 2  # that read images, by default
_MOST_WORKERS = os.cpu_count() or 1  # that MindSpore takes


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
    if not is_own:
        check_splits(data, splits)
    images = {split: build_data(config.data, data, split, ranks, config.accumulation) for split in splits}
    if not is_own:
        check_classes(data, {split: part.classes for split, part in images.items()}, n_classes)
    for part in images.values():
        if isinstance(part, ImageFolder):
            if part.passed_over:
                _warn_of_passed_over(part)
            if not config.data.resize:
                _check_sizes(config.data, part)
        elif None in (config.loss, config.metric):
            own: Any = part  # an OwnDataset
            own.check_classes(n_classes)
            own.n_classes = n_classes if config.loss is None else None
    if val_chooses:
        _check_size_of_val(images["val"].n_images)
    if (config.data.workers or 0) > _MOST_WORKERS:
        _log.info(f"data.workers is {config.data.workers}; MindSpore takes at most {_MOST_WORKERS}, one per processor")
    return images


def _check_size_of_val(n_samples: int) -> None:
    """Check that ``val`` has enough samples for a standard error; warn if they are so few that it means little."""
    if n_samples < _FEWEST_TO_CHOOSE:
        raise DataError(
            f"the split 'val' chooses between networks by their losses, but has {n_samples} sample, so the choice "
            f"would be random. Give it at least {_FEWEST_TO_CHOOSE}, preferably some hundreds"
        )
    if n_samples < _ENOUGH_TO_CHOOSE:
        _log.warning(
            f"the split 'val' chooses between networks, but has only {n_samples} samples, and may choose "
            f"a worse one; give it at least {_ENOUGH_TO_CHOOSE}, preferably some hundreds"
        )


def _warn_of_passed_over(images: ImageFolder) -> None:
    _log.warning(
        f"{str(images.folder)!r}: {count_in_words(images.passed_over)} passed over; only images in the class folders "
        f"themselves are read, and only {', '.join(IMAGE_SUFFIXES)}: convert or move them, if they belong to the data"
    )


def _check_sizes(config: DataConfig, images: ImageFolder) -> None:
    """Check the size of one image of each class, because images are not resized."""
    for size in images.sizes():
        if size != (config.image_size, config.image_size):
            raise DataError(
                f"data.resize is false, but {str(images.folder)!r} has images of {size[0]} x {size[1]} pixels, and "
                f"data.image_size is {config.image_size}: unless augmented, they would reach the network as they are; "
                "--set data.resize=true"
                + (f", or data.image_size={size[0]} if all have that size" if size[0] == size[1] else "")
            )


def build_data(config: DataConfig, data: Path, split: str, ranks: Ranks = ALONE, accumulation: int = 1) -> Batches:
    """Build this rank's part of one split.

    There are no more workers than this host has processors. If ``config.workers`` is not set, a user's own data gets
    one, because its code may not be thread-safe.

    Args:
        config: the section ``data``.
        data: DATA, as the user typed it.
        split: name of the split.
        ranks: the ranks of the job.
        accumulation: micro-batches of ``config.batch_size`` samples in a training batch.

    Raises:
        ConfigError: ``sink`` is set on CPU, or a factory can't be found.
        DataError: the split can't be used, see ``ImageFolder`` and ``OwnDataset``.
    """
    if config.sink and ms.get_context("device_target") == "CPU":
        raise ConfigError("data.sink is true, but --device-target is CPU, which has no queue; --set data.sink=false")
    options: dict[str, Any] = {"rank": ranks.rank, "group_size": ranks.group_size, "accumulation": accumulation}
    options |= config.model_dump(include={"batch_size", "sink", "multiple_of"})
    workers = config.workers or (_WORKERS if config.dataset is None else 1)
    options["workers"] = min(workers, _MOST_WORKERS)
    if config.dataset is not None:
        from dimred.data.own_dataset import OwnDataset

        return OwnDataset(load_factory(config.dataset, "data.dataset"), data, split, **options)
    options |= config.model_dump(include={"image_size", "mean", "std", "augmentation", "resize", "damaged"})
    return ImageFolder(split_folder(data, split), **options)
