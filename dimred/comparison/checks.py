"""Check what a stage 1 must have kept to be compared with, before anything is run."""

import json
import logging
from collections.abc import Collection
from pathlib import Path

from dimred.builders import build_splits
from dimred.builders.handover import last_rate
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import DataConfig, StageOneConfig, StageTwoConfig, config_text, load_config
from dimred.data.batches import steps_in_epoch
from dimred.errors import ConfigError
from dimred.io.atomic import atomic_write
from dimred.io.run_names import CONFIG, SNAPSHOTS, STAGE_1_CHECKPOINTS, checkpoint_place, full_checkpoints
from dimred.subspace.spectrum import check_enough
from dimred.trainer.preflight import snapshots_in_the_end

_log = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")


def check_comparable(
    data: Path, run: Path, one: StageOneConfig, two: StageTwoConfig, at: int, methods: Collection[str]
) -> None:
    """Check that a stage 1 has kept at one epoch what the methods need.

    Args:
        data: its data.
        run: its folder.
        one: its configuration.
        two: stage 2's.
        at: the epoch.
        methods: that are to be run.

    Raises:
        ConfigError, DataError, SeriesError: what is missing.
    """
    checkpoint = checkpoint_of(run, at)
    if at < (first := one.snapshots.first_epoch):
        raise ConfigError(
            f"RUN is {str(run)!r}, to be compared at epoch {at}, but it keeps snapshots from epoch {first} on; name "
            "later epochs with --at, or train it with an earlier snapshots.first_epoch"
        )
    build_splits(one, data, SPLITS, val_chooses=True)
    for key in ("model", "loss"):
        typed, trained = getattr(two, key), getattr(one, key)
        if typed != trained:
            raise ConfigError(f"--config is for the {key} {typed}, but {str(run)!r} trained {trained}")
    if "stage_2" in methods and (two.cooldown is None or two.cooldown.rate is None):
        last_rate(one, checkpoint)
    folder = run / STAGE_1_CHECKPOINTS / SNAPSHOTS
    n_snapshots = len(CheckpointSeries.open(folder).select(until_epoch=at))
    place = checkpoint_place(checkpoint)
    would_have = snapshots_in_the_end(one.model_copy(update={"epochs": at}), place and place.steps_per_epoch)
    if n_snapshots < would_have:
        _log.warning(
            f"{run} has {n_snapshots} of the {would_have} snapshots that it would have had, had it ended at "
            f"epoch {at}; later ones took their places. Train it with a larger snapshots.keep for a fair comparison"
        )
    if "search" in methods and two.search is not None:
        check_enough(n_snapshots, two.search.n_components, two.search.basis, folder)


def claim_folder(out: Path, two: StageTwoConfig) -> None:
    """Make the folder of a comparison, or check that the one that is there was made with the same configuration.

    Raises:
        ConfigError: it was made with another one, or holds something else.
    """
    if (out / CONFIG).exists():
        if load_config(StageTwoConfig, out / CONFIG) != two:
            raise ConfigError(
                f"--out is {str(out)!r}, which holds a comparison with other settings of stage 2; name another folder"
            )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out is {str(out)!r}, which holds something else; name another folder")
    else:
        out.mkdir(parents=True, exist_ok=True)
        atomic_write(out / CONFIG, config_text(two))


def check_rows(place: Path, data: Path, run: Path) -> None:
    """Check that the rows of an earlier call are of the same stage 1 and data.

    Args:
        place: their folder, of one seed at one epoch.
        data, run: of this call.

    Raises:
        ConfigError: they are not.
    """
    for row in sorted(place.glob("*.json"))[:1]:
        found = json.loads(row.read_text(encoding="utf-8"))
        for argument, key, typed in (("RUN", "run", run), ("DATA", "data", data)):
            if Path(found[key]).resolve() != typed.resolve():
                raise ConfigError(
                    f"{argument} is {str(typed)!r}, but {place} has rows of {found[key]!r}; name another --out"
                )


def checkpoint_of(run: Path, epoch: int) -> Path:
    """Find the full checkpoint that a stage 1 wrote after an epoch.

    Raises:
        ConfigError: there is none.
    """
    found = full_checkpoints(run / STAGE_1_CHECKPOINTS)
    if epoch not in found:
        there = ", ".join(map(str, sorted(found))) or "none"
        raise ConfigError(
            f"RUN is {str(run)!r}, which has no full checkpoint of epoch {epoch} (of these epochs: {there}); finish "
            "stage 1 first (its --resume goes on with it), or train it with a smaller checkpoints.every_epochs"
        )
    return found[epoch]


def ranks_of(one: StageOneConfig, n_images: int, checkpoint: Path) -> int:
    """Find out on how many ranks a stage 1 was trained: the fewest with which an epoch has its number of steps.

    Raises:
        ConfigError: no number gives these steps, so the run had other data.
    """
    place, size = checkpoint_place(checkpoint), one.data.batch_size
    steps = place.steps_per_epoch if place else None
    for n_ranks in range(1, n_images // size + 1):
        if steps_in_epoch(n_images, size, n_ranks, one.accumulation) == steps:
            return n_ranks
    raise ConfigError(
        f"{checkpoint} is of a run with {steps} steps an epoch, which {n_images} images in batches of "
        f"{size} don't make on any number of devices; give DATA that it was trained with"
    )


def on_one_process(stage: StageOneConfig | StageTwoConfig, n_ranks: int) -> dict[str, int | DataConfig]:
    """Return the options with which one process takes the steps of several ranks: their batches are micro-batches."""
    sink = stage.data.sink and n_ranks == 1
    return {"accumulation": stage.accumulation * n_ranks, "data": stage.data.model_copy(update={"sink": sink})}
