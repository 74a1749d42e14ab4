"""What a stage 1 must have kept to be compared with, checked before anything is run."""

from collections.abc import Collection
from pathlib import Path

from dimred.build.continuation import last_rate
from dimred.build.network_and_data import build_data, check_ranks, check_splits
from dimred.build.preflight import basis_kind, snapshots_in_the_end
from dimred.config import N_COMPONENTS, DataConfig, StageOneConfig, StageTwoConfig
from dimred.console import note
from dimred.data.batches import steps_in_epoch
from dimred.distributed.ranks import ALONE
from dimred.errors import ConfigError
from dimred.files.run_names import SNAPSHOTS, STAGE_1_CHECKPOINTS, checkpoint_place, full_checkpoints
from dimred.subspace.spectrum import check_enough
from dimred.weights.series import CheckpointSeries

SPLITS = ("train", "val", "test")
_CONTINUE = {"continued", "continued_random", "continued_alone", "cooldown"}  # from the rate that stage 1 ended with
_SEARCH = {"trainable_averaging": "snapshots", "projected_sgd": "pca", "p_bfgs_train": "pca", "p_bfgs_val": "pca"}


def check_comparable(
    data: Path, run: Path, one: StageOneConfig, two: StageTwoConfig, at: int, methods: Collection[str]
) -> int:
    """Check a stage 1 at one epoch; how many directions the rows with directions have.

    Those of stage 2's configuration; where it has none, 32, or as many as the snapshots give.

    Args:
        data: its data.
        run: its folder.
        one: its configuration.
        two: stage 2's.
        at: the epoch.
        methods: the rows, by the names of ``dimred compare``.

    Raises:
        ConfigError, DataError, SeriesError: what is missing.
    """
    checkpoint = checkpoint_of(run, at)
    check_snapshots(one, at, f"RUN {str(run)!r}")
    check_splits(one, data, SPLITS)
    for key in ("model", "loss"):
        typed, trained = getattr(two, key), getattr(one, key)
        if typed != trained:
            raise ConfigError(f"--config is for the {key} {typed}, but {str(run)!r} trained {trained}")
    if two.start not in ("last", "best") and any(name.startswith("continued") for name in methods):
        raise ConfigError(f"start is {two.start!r}; a comparison begins at best or last: --set start=last")
    if not _CONTINUE.isdisjoint(methods) and two.residual_rate is None:
        last_rate(one, checkpoint)
    if "p_bfgs_val" in methods:
        taken = two.with_batches_of(one)
        check_ranks(ALONE, taken, build_data(taken.data, data, "val", accumulation=taken.accumulation))
    folder = run / STAGE_1_CHECKPOINTS / SNAPSHOTS
    n_snapshots = len(CheckpointSeries.open(folder).select(until_epoch=at))
    place = checkpoint_place(checkpoint)
    would_have = snapshots_in_the_end(one.model_copy(update={"epochs": at}), place and place.steps_per_epoch)
    if n_snapshots < would_have:
        note(
            f"warning: {run} has {n_snapshots} of the {would_have} snapshots that it would have had, had it ended at "
            f"epoch {at}; later ones took their places. Train it with a larger snapshots.keep for a fair comparison"
        )
    n_components = two.n_components or max(1, min(N_COMPONENTS, n_snapshots - 1))
    searched = _SEARCH | dict.fromkeys(("continued", "continued_random"), basis_kind(two))
    for kind in sorted({searched[name] for name in methods if name in searched}):
        check_enough(n_snapshots, n_components, kind, folder)
    return n_components


def checkpoint_of(run: Path, epoch: int) -> Path:
    """The full checkpoint of a stage 1 run after an epoch.

    Raises:
        ConfigError: it has none.
    """
    found = full_checkpoints(run / STAGE_1_CHECKPOINTS)
    if epoch not in found:
        there = ", ".join(map(str, sorted(found))) or "none"
        raise ConfigError(
            f"RUN is {str(run)!r}, which has no full checkpoint of epoch {epoch} (of these epochs: {there}); finish "
            "stage 1 first (its --resume goes on with it), or train it with a smaller checkpoints.every_epochs"
        )
    return found[epoch]


def check_snapshots(one: StageOneConfig, epoch: int, where: str) -> None:
    """Whether there is a snapshot by this epoch; ConfigError says from when on."""
    first = one.snapshots.first_epoch
    if epoch < first:
        raise ConfigError(
            f"{where} is to be compared at epoch {epoch}, but keeps snapshots from epoch {first} on; name later "
            "epochs with --at, or train it with an earlier snapshots.first_epoch"
        )


def ranks_of(one: StageOneConfig, n_images: int, checkpoint: Path) -> int:
    """On how many ranks a stage 1 was trained: the fewest with which an epoch has its number of steps.

    Raises:
        ConfigError: there is no such number, so it had other data.
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
    """The options by which one process takes the steps of so many ranks: their batches are its micro-batches."""
    sink = stage.data.sink and n_ranks == 1
    return {"accumulation": stage.accumulation * n_ranks, "data": stage.data.model_copy(update={"sink": sink})}
