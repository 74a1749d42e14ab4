"""Read WEIGHTS, and what the run of stage 1 that they come from says about them."""

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
from dimred.io.run_names import (
    CONFIG,
    SNAPSHOTS,
    STAGE_1_CHECKPOINTS,
    epochs_of_checkpoint,
    named_weights,
    own_config,
    without_dots,
)
from dimred.runs.steps import build_rates
from dimred.train_step.optimizer_state import UPDATES

_USED_UP = 1e-3  # fraction of the peak below which nothing is left to cool down


@dataclass(frozen=True, eq=False)
class StageOneRun:
    """The run of stage 1 that WEIGHTS come from, as far as it is known.

    Attributes:
        path: WEIGHTS.
        arrays: every array of WEIGHTS by name.
        epoch: the epoch after which they were written; None if their name does not tell.
        steps_per_epoch: stage 1's; None if their name does not tell.
        config: stage 1's configuration; None if WEIGHTS are not in the folder of a run.
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
        name, file = epochs_of_checkpoint(path), _config_file(path)
        config = load_config(StageOneConfig, file) if file else None
        return cls(path, read_checkpoint(path), name and name.epoch, name and name.steps_per_epoch, config)

    @classmethod
    def open_on_all(cls, weights: Path, ranks: Ranks) -> "StageOneRun":
        """Read WEIGHTS on rank 0, and on the other ranks under the same path; all of them call this.

        Raises:
            CheckpointError, ConfigError: as ``open``; on the other ranks it is a DimredError.
            DimredError: a rank can't read the file, or has a different one under that path.
        """
        run: StageOneRun = ranks.share(ranks.run_on_rank_zero(lambda: cls.open(weights)), cls.open)
        return run

    @property
    def n_updates(self) -> int | None:
        """Return how many updates the optimizer has made; None if WEIGHTS have no state of an optimizer."""
        return int(self.arrays[UPDATES].item()) if UPDATES in self.arrays else None

    @cached_property
    def digest(self) -> str:
        """Return the digest of all arrays in WEIGHTS."""
        return arrays_digest(self.arrays)

    @property
    def title(self) -> str:
        """Return the beginning of a message about WEIGHTS."""
        return named_weights("WEIGHTS", self.path)

    @property
    def config_file(self) -> Path:
        """Return the path of stage 1's configuration."""
        return self.path.parent.parent / CONFIG

    @property
    def has_snapshots(self) -> bool:
        """Return whether stage 1 kept a snapshot up to the epoch of WEIGHTS."""
        folder = self.path.parent / SNAPSHOTS
        if not (folder.is_dir() and any(folder.iterdir())):
            return False
        return self.epoch is None or any(one.epoch <= self.epoch for one in CheckpointSeries.open(folder).entries)

    def snapshots(self) -> CheckpointSeries:
        """Open the snapshots beside WEIGHTS up to their epoch, as stage 1 may have gone on; all if it is not known.

        Raises:
            SeriesError: there are no snapshots, they can't be read, or all are later.
        """
        series = CheckpointSeries.open(self.path.parent / SNAPSHOTS)
        return series if self.epoch is None or not len(series) else series.select(until_epoch=self.epoch)

    def known_config(self) -> StageOneConfig:
        """Return stage 1's configuration.

        Raises:
            ConfigError: it is not known.
        """
        if self.config is None:
            raise ConfigError(
                f"{self.title} is not in the {STAGE_1_CHECKPOINTS}/ of a stage 1 run, so neither its optimizer nor its "
                "rate is known; for a cooldown set cooldown.optimizer.name and cooldown.rate"
            )
        return self.config

    def last_rate(self) -> float:
        """Return the rate that the next update of stage 1 would have had.

        Raises:
            ConfigError: the run or the epoch is not known, or nothing is left of the rate.
        """
        schedule, per_epoch = self.known_config().schedule, self.steps_per_epoch
        if self.epoch is None or per_epoch is None:
            raise ConfigError(
                f"WEIGHTS is {str(self.path)!r}, not NAME-EPOCH_STEPS.ckpt, so stage 1's rate there is not known; "
                "set cooldown.rate"
            )
        rates = build_rates(schedule, per_epoch, self.epoch + 1)
        # The updates are fewer than the steps if some steps were dropped.
        n_updates = self.epoch * per_epoch if self.n_updates is None else self.n_updates
        has_ended = n_updates >= schedule.total_epochs * per_epoch
        rate = 0.0 if schedule.falls_to_zero and has_ended else float(rates[min(n_updates, len(rates) - 1)])
        if schedule.falls_to_zero and rate < _USED_UP * schedule.peak:
            raise ConfigError(
                f"Stage 1's learning rate was {rate:.2g} by epoch {self.epoch}, so nothing is left to cool down; name "
                "an earlier full checkpoint, or set cooldown.rate"
            )
        return rate

    def check_continued_by(self, settings: StageTwoConfig) -> None:
        """Check that a stage 2 goes on with stage 1's loss and normalisation, if its run is known.

        The size of images may differ, as a network without a fixed size may be brought to its end on larger ones
        (Touvron et al., FixRes, 2019).

        Args:
            settings: the whole configuration of stage 2.

        Raises:
            ConfigError: the loss, the label smoothing of the cross entropy, or one of the keys of the data differs.
        """
        one = self.config
        if one is None:
            return
        but_weights = f"but WEIGHTS {str(self.path)!r} were trained with"
        if one.loss != settings.loss:
            value, of_stage_1 = (stage.loss or "null, cross entropy" for stage in (settings, one))
            raise ConfigError(f"loss is {value}, {but_weights} {of_stage_1}; set the same loss")
        keys = [] if settings.loss else ["label_smoothing"]
        keys += [] if settings.data.dataset else ["data.mean", "data.std"]
        for key in keys:
            value, of_stage_1 = (json.dumps(attrgetter(key)(stage)) for stage in (settings, one))
            if value != of_stage_1:
                raise ConfigError(f"{key} is {value}, {but_weights} another; --set '{key}={of_stage_1}'")


def config_beside(weights: Path) -> Path:
    """Return the path of the configuration in the run of stage 1 that WEIGHTS are in.

    Raises:
        ConfigError: they are in no run.
    """
    file = _config_file(_in_its_run(weights))
    if file is None:
        raise ConfigError(
            f"{named_weights('WEIGHTS', weights)} is in no run of stage 1 that this host can read, so its "
            "configuration is not known; give one by --config, see dimred init"
        )
    return file


def _config_file(weights: Path) -> Path | None:
    file = weights.parent.parent / CONFIG
    return own_config(file.parent) if weights.parent.name == STAGE_1_CHECKPOINTS and file.is_file() else None


def _in_its_run(weights: Path) -> Path:
    """Return the absolute path of WEIGHTS; a link from elsewhere is followed to the run that they are in."""
    path = without_dots(weights)
    return path.resolve() if path.is_symlink() and path.parent.name != STAGE_1_CHECKPOINTS else path
