"""The splits of DATA as batches: built for this rank, and checked against each other and the network."""

import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mindspore as ms

from dimred.config import DataConfig, StageConfig, StageOneConfig
from dimred.data.batches import Batches
from dimred.data.datasets import DATASETS, Dataset, OwnData
from dimred.data.image_folder import check_classes
from dimred.data.mixing import Mixing
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, DataError
from dimred.factories import load_factory

_log = logging.getLogger(__name__)

# Samples of val.
_FEWEST_TO_CHOOSE = 2
_ENOUGH_TO_CHOOSE = 50
_MOST_WORKERS = os.cpu_count() or 1  # that MindSpore takes


def build_splits(
    config: StageConfig, data: Path, splits: Sequence[str], *, ranks: Ranks = ALONE, val_chooses: bool = False
) -> dict[str, Batches]:
    """Build this rank's part of some splits, and check that they fit the network.

    Args:
        config: the stage's configuration.
        data: DATA, as the user typed it.
        splits: names of the splits to build.
        ranks: the ranks of the job.
        val_chooses: whether losses on ``val`` will choose between networks; a warning is logged if it is small.

    Raises:
        DataError: a split is missing or does not fit; or ``val`` must choose and has fewer than two samples.
        ConfigError: the dataset's factory can't be found, or ``sink`` does not fit this host.
    """
    n_classes = config.model.n_classes
    mixing = _mixing(config)
    dataset_of(config.data).check(data, splits)
    images = {split: build_data(config.data, data, split, ranks, config.accumulation, mixing) for split in splits}
    check_classes(data, {split: part.classes for split, part in images.items()}, n_classes)
    for part in images.values():
        part.check_use(n_classes, trains_classes=config.loss is None, measures_classes=config.metric is None)
    if val_chooses:
        _check_size_of_val(images["val"].n_images)
    if (config.data.workers or 0) > _MOST_WORKERS:
        _log.info(f"data.workers is {config.data.workers}; MindSpore takes at most {_MOST_WORKERS}, one per processor")
    return images


def _mixing(config: StageConfig) -> Mixing | None:
    """Return how training samples are mixed; None except in stage 1."""
    if isinstance(config, StageOneConfig) and config.mixing.is_on:
        return Mixing(config.model.n_classes, config.mixing.mixup, config.mixing.cutmix)
    return None


def _check_size_of_val(n_samples: int) -> None:
    """Check that ``val`` has enough samples for a standard error; warn if the error would mean little."""
    if n_samples < _FEWEST_TO_CHOOSE:
        raise DataError(
            f"the split 'val' chooses between networks by their losses, but has {n_samples} sample, so the choice "
            f"would be random. Give it at least {_FEWEST_TO_CHOOSE}, preferably hundreds"
        )
    if n_samples < _ENOUGH_TO_CHOOSE:
        _log.warning(
            f"the split 'val' chooses between networks, but has only {n_samples} samples, and may choose "
            f"a worse one; give it at least {_ENOUGH_TO_CHOOSE}, preferably hundreds"
        )


def dataset_of(config: DataConfig) -> Dataset:
    """Return the kind of data that a configuration names, without importing a user's function yet."""
    if config.dataset in DATASETS:
        return DATASETS[config.dataset]
    return OwnData(partial(load_factory, config.dataset, "data.dataset"))


def build_data(
    config: DataConfig,
    data: Path,
    split: str,
    ranks: Ranks = ALONE,
    accumulation: int = 1,
    mixing: Mixing | None = None,
) -> Batches:
    """Build this rank's part of one split.

    The number of workers is capped at this host's number of processors.

    Args:
        config: the section ``data``.
        data: DATA, as the user typed it.
        split: name of the split.
        ranks: the ranks of the job.
        accumulation: micro-batches of ``config.batch_size`` samples in a training batch.
        mixing: how training samples are mixed; None for not at all.

    Raises:
        ConfigError: ``sink`` is set on CPU, or a factory can't be found.
        DataError: the split can't be used; see ``Dataset.split``.
    """
    if config.sink and ms.get_context("device_target") == "CPU":
        raise ConfigError("data.sink is true, but --device-target is CPU, which has no queue; --set data.sink=false")
    dataset = dataset_of(config)
    options: dict[str, Any] = {
        "rank": ranks.rank,
        "group_size": ranks.group_size,
        "accumulation": accumulation,
        "mixing": mixing,
        "workers": min(config.workers or dataset.n_threads, _MOST_WORKERS),
    }
    options |= config.model_dump(include={"batch_size", "sink", "multiple_of", *dataset.keys})
    return dataset.split(data, split, **options)
