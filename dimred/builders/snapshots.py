"""Which snapshots of a stage 1 belong to a full checkpoint, and how many a run leaves."""

from pathlib import Path

from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig
from dimred.io.run_names import SNAPSHOTS, checkpoint_place


def snapshots_until(weights: Path) -> CheckpointSeries:
    """Return the snapshots beside WEIGHTS, up to its epoch: a stage 1 that went on has later ones.

    Raises:
        SeriesError: there are none, they can't be read, or all are later.
    """
    series, place = CheckpointSeries.open(weights.parent / SNAPSHOTS), checkpoint_place(weights)
    return series if place is None or not len(series) else series.select(until_epoch=place.epoch)


def snapshots_if_any(weights: Path) -> CheckpointSeries | None:
    """Return the same; None where stage 1 ended before the first of them, or all are later.

    Raises:
        SeriesError: they can't be read.
    """
    folder, place = weights.parent / SNAPSHOTS, checkpoint_place(weights)
    if not (folder.is_dir() and any(folder.iterdir())):
        return None
    series = CheckpointSeries.open(folder)
    if place is not None and len(series) and all(entry.epoch > place.epoch for entry in series.entries):
        return None
    return snapshots_until(weights)


def snapshots_in_the_end(config: StageOneConfig, steps_per_epoch: int | None = None) -> int:
    """Return how many snapshots a whole stage 1 leaves.

    Args:
        config: of stage 1.
        steps_per_epoch: an epoch gives no more snapshots than these; None where they are not known.
    """
    per_epoch = min(config.snapshots.per_epoch, steps_per_epoch or config.snapshots.per_epoch)
    taken = max(config.epochs - config.snapshots.first_epoch + 1, 0) * per_epoch
    return min(config.snapshots.keep, taken)
