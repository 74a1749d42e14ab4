"""Read WEIGHTS, and find the stage 1 run that they come from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import numpy as np

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.layout import arrays_digest
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.distributed.ranks import Ranks
from dimred.errors import ConfigError
from dimred.run_files.run_names import (
    CONFIG,
    SNAPSHOTS,
    STAGE_1_CHECKPOINTS,
    epochs_of_checkpoint,
    named_weights,
    own_config,
    without_dots,
)
from dimred.runs.splits import dataset_of
from dimred.train_step.optimizer_state import UPDATES


@dataclass(frozen=True, eq=False)
class StageOneRun:
    """WEIGHTS and, as far as it is known, the stage 1 run that they come from.

    Attributes:
        path: WEIGHTS.
        arrays: every array of WEIGHTS by name.
        epoch: the epoch after which they were written; None if their file name does not say.
        steps_per_epoch: stage 1's; None if their file name does not say.
        config: stage 1's configuration; None if WEIGHTS are not in a run's folder.
    """

    path: Path
    arrays: Mapping[str, np.ndarray] = field(repr=False)
    epoch: int | None = None
    steps_per_epoch: int | None = None
    config: StageOneConfig | None = None

    @classmethod
    def open(cls, weights: Path) -> "StageOneRun":
        """Read WEIGHTS, and find their run.

        Raises:
            CheckpointError: WEIGHTS can't be read.
            ConfigError: stage 1's configuration can't be read.
        """
        path = _in_its_run(weights)
        name = epochs_of_checkpoint(path)
        file = _config_file(path)
        config = load_config(StageOneConfig, file) if file else None
        return cls(path, read_checkpoint(path), name and name.epoch, name and name.steps_per_epoch, config)

    @classmethod
    def open_on_all(cls, weights: Path, ranks: Ranks) -> "StageOneRun":
        """Read WEIGHTS on rank 0, and on the other ranks under the same path; all of them call this.

        Raises:
            CheckpointError, ConfigError: from ``open``, on rank 0; the other ranks raise a DimredError.
            DimredError: a rank can't read the file, or has a different one under that path.
        """
        return ranks.share(ranks.run_on_rank_zero(lambda: cls.open(weights)), cls.open)

    @property
    def n_updates(self) -> int | None:
        """Return how many updates the optimizer has made; None if WEIGHTS have no optimizer state."""
        return int(self.arrays[UPDATES].item()) if UPDATES in self.arrays else None

    @cached_property
    def digest(self) -> str:
        """Return the digest of all arrays in WEIGHTS."""
        return arrays_digest(self.arrays)

    @property
    def title(self) -> str:
        """Return what messages call WEIGHTS."""
        return named_weights("WEIGHTS", self.path)

    @property
    def has_snapshots(self) -> bool:
        """Return whether stage 1 kept a snapshot up to the epoch of WEIGHTS."""
        folder = self.path.parent / SNAPSHOTS
        if not (folder.is_dir() and any(folder.iterdir())):
            return False
        return self.epoch is None or any(entry.epoch <= self.epoch for entry in CheckpointSeries.open(folder).entries)

    def snapshots(self) -> CheckpointSeries:
        """Open the snapshots beside WEIGHTS, up to the epoch of WEIGHTS if known: stage 1 may have continued since.

        Raises:
            SeriesError: there is no snapshot series, it can't be read, or all its snapshots are later.
        """
        series = CheckpointSeries.open(self.path.parent / SNAPSHOTS)
        return series if self.epoch is None or not len(series) else series.select(until_epoch=self.epoch)

    def check_continued_by(self, config: StageTwoConfig) -> None:
        """Check that a stage 2 keeps stage 1's loss and normalisation, if the stage 1 run is known.

        The image size may differ, because a network without a fixed input size may be finished on larger images
        (Touvron et al., FixRes, 2019).

        Raises:
            ConfigError: the loss, the cross entropy's label smoothing, or a data key that must be kept differs.
        """
        if self.config is None:
            return
        keys = ["loss", *([] if config.loss else ["label_smoothing"])]
        keys += [f"data.{key}" for key in dataset_of(config.data).kept_keys]
        for key in keys:
            value, of_stage_1 = (json.dumps(attrgetter(key)(stage)) for stage in (config, self.config))
            if value != of_stage_1:
                raise ConfigError(
                    f"{key} is {value}, but WEIGHTS {str(self.path)!r} were trained with another value; "
                    f"--set '{key}={of_stage_1}'"
                )


def config_beside(weights: Path) -> Path:
    """Return the path of the configuration in the stage 1 run that WEIGHTS are in.

    Raises:
        ConfigError: they are in no run.
    """
    file = _config_file(_in_its_run(weights))
    if file is None:
        raise ConfigError(
            f"{named_weights('WEIGHTS', weights)} belongs to no run of stage 1 that this host can read, so its "
            "configuration is unknown; give one with --config, see dimred init"
        )
    return file


def _config_file(weights: Path) -> Path | None:
    file = weights.parent.parent / CONFIG
    return own_config(file.parent) if weights.parent.name == STAGE_1_CHECKPOINTS and file.is_file() else None


def _in_its_run(weights: Path) -> Path:
    """Return the absolute path of WEIGHTS, following a link from elsewhere into their run."""
    path = without_dots(weights)
    return path.resolve() if path.is_symlink() and path.parent.name != STAGE_1_CHECKPOINTS else path
