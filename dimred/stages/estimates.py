"""Estimate a run's steps, snapshots and disk space before its first step; shorten a run to one step."""

import logging
import shutil
from pathlib import Path
from typing import Any, TypeVar

from mindspore import nn

from dimred.config import N_COMPONENTS, StageConfig, StageOneConfig, StageTwoConfig
from dimred.errors import ConfigError

_log = logging.getLogger(__name__)
Settings = TypeVar("Settings", bound=StageConfig)

_FLOAT = 4  # bytes
_STATES = 3  # the newest two, and the one being written


def say_plan_of_stage_1(config: StageOneConfig, steps_per_epoch: int, disk: int) -> None:
    """Log what a whole stage 1 takes, and whether it leaves the snapshots that a stage 2 needs."""
    say_plan(config, steps_per_epoch, disk)
    n_snapshots = snapshots_in_the_end(config, steps_per_epoch)
    if n_snapshots == 0:
        _log.warning(
            f"this run keeps no snapshots, so stage 2 will have no averages to choose from: snapshots.first_epoch is "
            f"{config.snapshots.first_epoch}, and epochs is {config.epochs}"
        )
    elif n_snapshots <= N_COMPONENTS:
        hint = f"a search in {N_COMPONENTS} directions would need {N_COMPONENTS + 1}"
        _log.info(f"this run keeps {counted(n_snapshots, 'snapshot')}; {hint}")


def say_plan(config: StageOneConfig | StageTwoConfig, steps_per_epoch: int, disk: int) -> None:
    """Log how many steps a whole run makes, and how many bytes of ``disk`` it takes."""
    n_epochs = config.n_epochs
    ends = "up to " if isinstance(config, StageOneConfig) and config.stop else ""
    _log.info(
        f"{ends}{counted(n_epochs, 'epoch')} of {counted(steps_per_epoch, 'step')}, {n_epochs * steps_per_epoch:,} "
        f"in all; snapshots, checkpoints and states take up to {disk / 1e6:,.0f} MB of disk"
    )


def counted(n: int, what: str) -> str:
    """Format a number with the noun that it counts: 1 epoch, 2 epochs."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def disk_of_stage_1(config: StageOneConfig, network: nn.Cell) -> int:
    """Estimate the bytes of a stage 1 on disk: snapshots, full checkpoints and states, with one more of each."""
    weights, everything = _sizes(network)
    state = everything + 2 * weights + (everything if config.ema.decay else 0)  # AdamW keeps two moments
    checkpoints = min(config.checkpoints.keep, config.epochs // config.checkpoints.every_epochs + 1) + 1
    snapshots = snapshots_in_the_end(config) + 1
    return _FLOAT * (snapshots * weights + (checkpoints + _STATES) * state)


def disk_of_stage_2(config: StageTwoConfig, network: nn.Cell, pca_mat: Path | None) -> int:
    """Estimate the bytes of a stage 2 on disk: checkpoints and states, and the basis if it has to fit one."""
    weights, everything = _sizes(network)
    state = 2 * everything + (1 if config.cooldown is None else 2) * weights  # AdamW keeps two moments
    basis = (config.search.n_components + 2) * weights if config.search and pca_mat is None else 0
    return _FLOAT * ((config.n_epochs + 4) * 2 * everything + _STATES * state + basis)


def check_space(out: Path, n_bytes: int) -> None:
    """Check that ``n_bytes`` bytes, less those already in ``out``, are free on its disk; ``out`` need not exist.

    Raises:
        ConfigError: fewer bytes are free.
    """
    there = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    free, in_use = shutil.disk_usage(there).free, sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if free < n_bytes - in_use:
        raise ConfigError(
            f"--out is {str(out)!r}, on a disk with {free / 1e6:,.0f} MB free; the run takes up to "
            f"{(n_bytes - in_use) / 1e6:,.0f} MB. Free some, keep fewer checkpoints, or name a folder on another disk"
        )


def _sizes(network: nn.Cell) -> tuple[int, int]:
    """Count the trainable weights, and all parameters."""
    trainable, everything = network.trainable_params(), network.get_parameters()
    return sum(weight.size for weight in trainable), sum(parameter.size for parameter in everything)


def snapshots_in_the_end(config: StageOneConfig, steps_per_epoch: int | None = None) -> int:
    """Return how many snapshots a whole stage 1 leaves.

    Args:
        config: configuration of stage 1.
        steps_per_epoch: limit on the snapshots of an epoch; None if not known.
    """
    per_epoch = min(config.snapshots.per_epoch, steps_per_epoch or config.snapshots.per_epoch)
    n_snapshots = max(config.epochs - config.snapshots.first_epoch + 1, 0) * per_epoch
    return min(config.snapshots.keep, n_snapshots)


def one_step_of(settings: Settings) -> Settings:
    """Return the settings of a run of one step that goes through every phase of the whole run.

    With ``stop``, a run of stage 1 makes two steps, because an average needs two snapshots. Build the step from the
    settings of the whole run, as a schedule can't be that short.
    """
    changes: dict[str, Any] = {"epochs": 1, "reestimate_batches": 1}
    if isinstance(settings, StageOneConfig):
        snapshots = settings.snapshots.model_copy(update={"per_epoch": 1, "first_epoch": 1})
        changes |= {"snapshots": snapshots, "evaluate_every_epochs": 1}
        if settings.stop is not None:
            changes |= {"epochs": 2, "stop": settings.stop.model_copy(update={"every_epochs": 1})}
    return settings.model_copy(update=changes)
