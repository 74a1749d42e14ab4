"""Count the bytes that a stage takes on disk, and check that there is room for them."""

from pathlib import Path

from mindspore import nn

from dimred.config import StageOneConfig
from dimred.errors import ConfigError
from dimred.io.system import free_bytes

FLOAT = 4  # bytes
STATES = 3  # the newest two, and the one being written


def sizes(network: nn.Cell) -> tuple[int, int]:
    """Count the trainable weights, and all parameters."""
    trainable = network.trainable_params()
    everything = network.get_parameters()
    return sum(weight.size for weight in trainable), sum(parameter.size for parameter in everything)


def disk_of_stage_1(config: StageOneConfig, network: nn.Cell) -> int:
    """Return about how many bytes stage 1 takes on disk in all: snapshots, full checkpoints and states.

    The count has one more of each than is kept, because a new file is written before the oldest is removed.
    """
    weights, everything = sizes(network)
    state = everything + 2 * weights  # AdamW keeps two moments
    if config.ema.is_on:
        state += everything
    checkpoints = min(config.checkpoints.keep, config.epochs // config.checkpoints.every_epochs + 1) + 1
    snapshots = snapshots_in_the_end(config) + 1
    means = 2 * weights if config.snapshots.content == "mean" else 0  # in the states alone
    return FLOAT * (snapshots * weights + checkpoints * state + STATES * (state + means))


def snapshots_in_the_end(config: StageOneConfig, steps_per_epoch: int | None = None) -> int:
    """Return how many snapshots stage 1 leaves in the end, at most ``steps_per_epoch`` an epoch if that is known."""
    per_epoch = min(config.snapshots.per_epoch, steps_per_epoch or config.snapshots.per_epoch)
    n_snapshots = max(config.epochs - config.snapshots.first_epoch + 1, 0) * per_epoch
    return min(config.snapshots.keep, n_snapshots)


def check_space(out: Path, n_bytes: int) -> None:
    """Check that a whole run has room for ``n_bytes`` on its disk, if the disk says how much is free.

    The folder need not exist; the bytes in it count as the run's own.
    """
    there = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    free = free_bytes(there)
    in_use = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if free is not None and free < n_bytes - in_use:
        raise ConfigError(
            f"--out is {str(out)!r}, on a disk with {free / 1e6:,.0f} MB free; the run takes up to "
            f"{(n_bytes - in_use) / 1e6:,.0f} MB. Free some, keep fewer checkpoints, or name a folder on another disk"
        )
