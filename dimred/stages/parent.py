"""The run of stage 1 that WEIGHTS come from: what its files tell, read once and shared with every rank."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.layout import arrays_digest
from dimred.checkpoints.series import CheckpointSeries
from dimred.checkpoints.states import RunStates
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import CheckpointError, ConfigError
from dimred.io.run_names import (
    CONFIG,
    SNAPSHOTS,
    STAGE_1_CHECKPOINTS,
    STATES,
    epochs_of_checkpoint,
    named_weights,
    without_dots,
)
from dimred.runs.steps import build_rates
from dimred.train_step.optimizers import UPDATES
from dimred.vectors.parameters import from_arrays

_FACTS = "parent"  # name in a state of stage 2
_USED_UP = 1e-3  # fraction of the peak below which nothing is left to cool down
_ALLOWED = ("data.image_size",)  # keys that may differ from stage 1's if the user allows it


@dataclass(frozen=True, eq=False)
class StageOneRun:
    """The run of stage 1 that WEIGHTS come from, as far as it is known.

    ``open`` finds what this host's files and the name of WEIGHTS tell, which is needed before the ranks join.
    ``share`` reads WEIGHTS on rank 0; then every rank knows the same.

    Attributes:
        weights: WEIGHTS, a path.
        epoch: the epoch after which they were written; None if their name does not tell.
        steps_per_epoch: stage 1's; None if their name does not tell.
        config: stage 1's configuration; None if WEIGHTS are not in the folder of a run.
        names: names of the arrays in WEIGHTS.
        n_updates: updates that their optimizer has made; None if they have no state of an optimizer.
        digest: digest of all arrays in WEIGHTS; None if they can't be read.
        fault: why WEIGHTS can't be read; None if they can.
        is_gone: whether WEIGHTS are gone, and the rest is known from a state of the stage 2 that continues them.
        arrays: every array of WEIGHTS by name, on rank 0, which alone has the file for sure.
    """

    weights: Path
    epoch: int | None = None
    steps_per_epoch: int | None = None
    config: StageOneConfig | None = None
    names: frozenset[str] = frozenset()
    n_updates: int | None = None
    digest: str | None = None
    fault: str | None = None
    is_gone: bool = False
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, weights: Path) -> "StageOneRun":
        """Find the run of WEIGHTS in this host's files.

        Raises:
            ConfigError: stage 1's configuration can't be read.
        """
        weights = without_dots(weights)
        if weights.is_symlink() and weights.parent.name != STAGE_1_CHECKPOINTS:
            weights = weights.resolve()
        name, run = epochs_of_checkpoint(weights), cls(weights)
        is_in_run = weights.parent.name == STAGE_1_CHECKPOINTS and run.config_file.is_file()
        config = load_config(StageOneConfig, run.config_file) if is_in_run else None
        return cls(weights, name and name.epoch, name and name.steps_per_epoch, config)

    def share(self, ranks: Ranks = ALONE, stage_2: Path | None = None) -> "StageOneRun":
        """Read WEIGHTS on rank 0, and tell the other ranks; all of them call this.

        Args:
            ranks: the ranks of the job.
            stage_2: folder of a stage 2 that is resumed. Its state tells what it needs to know if WEIGHTS are gone.

        Returns:
            The run, the same on every rank, but the arrays; a file that can't be read is its ``fault``.
        """
        of_rank_zero = ranks.run_on_rank_zero(lambda: self._with_weights(stage_2))
        facts = json.loads(ranks.broadcast_bytes(json.dumps(of_rank_zero and of_rank_zero.facts()).encode()))
        return of_rank_zero or self._with_facts(facts)

    def _with_weights(self, stage_2: Path | None) -> "StageOneRun":
        if not self.weights.exists() and stage_2 is not None and (stage_2 / STATES).is_dir():
            state = RunStates(stage_2).newest(lambda _: None)
            if state is not None and _FACTS in state.values:  # else it is a state of stage 1
                return replace(self._with_facts(state.values[_FACTS]), is_gone=True)
        try:
            arrays = read_checkpoint(self.weights)
        except CheckpointError as fault:
            return replace(self, fault=str(fault))
        n_updates = int(arrays[UPDATES].item()) if UPDATES in arrays else None
        digest = arrays_digest(arrays)
        return replace(self, arrays=arrays, names=frozenset(arrays), n_updates=n_updates, digest=digest)

    def facts(self) -> dict[str, Any]:
        """Return all but ``weights`` and ``arrays`` as plain JSON values, for a state and for the other ranks."""
        return {
            "epoch": self.epoch,
            "steps_per_epoch": self.steps_per_epoch,
            "config": self.config and self.config.model_dump(mode="json"),
            "names": sorted(self.names),
            "n_updates": self.n_updates,
            "digest": self.digest,
            "fault": self.fault,
            "is_gone": self.is_gone,
        }

    def _with_facts(self, facts: Mapping[str, Any]) -> "StageOneRun":
        config = facts["config"] and StageOneConfig.checked(facts["config"])
        return replace(self, **{**facts, "config": config, "names": frozenset(facts["names"])})

    @property
    def title(self) -> str:
        """Return the beginning of a message about WEIGHTS."""
        return named_weights("WEIGHTS", self.weights)

    @property
    def config_file(self) -> Path:
        """Return the path of stage 1's configuration."""
        return self.weights.parent.parent / CONFIG

    @property
    def has_snapshots(self) -> bool:
        """Return whether stage 1 kept a snapshot up to the epoch of WEIGHTS."""
        folder = self.weights.parent / SNAPSHOTS
        if not (folder.is_dir() and any(folder.iterdir())):
            return False
        return self.epoch is None or any(one.epoch <= self.epoch for one in CheckpointSeries.open(folder).entries)

    def snapshots(self) -> CheckpointSeries:
        """Open the snapshots beside WEIGHTS up to their epoch, as stage 1 may have gone on; all if it is not known.

        Raises:
            SeriesError: there are no snapshots, they can't be read, or all are later.
        """
        series = CheckpointSeries.open(self.weights.parent / SNAPSHOTS)
        return series if self.epoch is None or not len(series) else series.select(until_epoch=self.epoch)

    def put_weights(self, network: nn.Cell, ranks: Ranks) -> None:
        """Set the network to WEIGHTS on every rank, unless they are gone; all ranks call this."""
        if not self.is_gone:
            if ranks.is_rank_zero:
                from_arrays(network.get_parameters(), self.arrays, self.title)
            ranks.broadcast(list(network.get_parameters()))

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
                f"WEIGHTS is {str(self.weights)!r}, not NAME-EPOCH_STEPS.ckpt, so stage 1's rate there is not known; "
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

    def config_of_stage_2(self, out: Path, *, resume: bool) -> Path:
        """Find the configuration of a stage 2 that is started without ``--config``.

        A run that is resumed has its own; a new one takes that in the folder of stage 1.

        Args:
            out: folder of stage 2.
            resume: whether it may be resumed.

        Returns:
            The file.

        Raises:
            ConfigError: stage 1's configuration is not known on this host, and there is no stage 2 to resume.
        """
        if resume and (out / CONFIG).is_file():
            return out / CONFIG
        if self.config is None:
            raise ConfigError(
                f"{self.title} is in no run of stage 1 that this host can read, so its configuration is not known; "
                "give one by --config, see dimred init"
            )
        return self.config_file

    def check_same_weights(self, facts: Mapping[str, Any], weights: str) -> None:
        """Check that WEIGHTS are those that a stage 2 began with.

        Args:
            facts: what ``facts`` returned then; a state of an early version has no digest in them.
            weights: the path of WEIGHTS then.

        Raises:
            ConfigError: they are others.
        """
        digest = facts.get("digest")
        if None not in (digest, self.digest) and digest != self.digest:
            raise ConfigError(
                f"{self.title} has other weights than {weights} had when the run began; give those, or begin in a new "
                "folder"
            )

    def check_continued_by(self, settings: StageTwoConfig, allowed: Collection[str] = ()) -> None:
        """Check that a stage 2 goes on with stage 1's loss, normalisation and size of images, if its run is known.

        Args:
            settings: the whole configuration of stage 2.
            allowed: keys that may differ; of those checked here only ``data.image_size``, as a network without a
                fixed size may be brought to its end on larger images (Touvron et al., FixRes, 2019).

        Raises:
            ConfigError: the loss, the label smoothing of the cross entropy, or one of the keys of the data differs.
        """
        one = self.config
        if one is None:
            return
        but_weights = f"but WEIGHTS {str(self.weights)!r} were trained with"
        if one.loss != settings.loss:
            value, of_stage_1 = (stage.loss or "null, cross entropy" for stage in (settings, one))
            raise ConfigError(f"loss is {value}, {but_weights} {of_stage_1}; set the same loss")
        for key in _task_keys(settings):
            value, of_stage_1 = (json.dumps(attrgetter(key)(stage)) for stage in (settings, one))
            if value != of_stage_1 and not (key in allowed and key in _ALLOWED):
                on_purpose = f", or --allow-change {key}" if key in _ALLOWED else ""
                raise ConfigError(f"{key} is {value}, {but_weights} another; --set '{key}={of_stage_1}'{on_purpose}")


def _task_keys(settings: StageTwoConfig) -> Sequence[str]:
    """Return the keys, beside ``loss``, that must be stage 1's."""
    keys = [] if settings.loss else ["label_smoothing"]
    return keys if settings.data.dataset else [*keys, "data.mean", "data.std", "data.image_size"]
