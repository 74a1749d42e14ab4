"""What a stage 1 must have kept to be compared with, checked before anything is run."""

import json
from collections.abc import Collection
from pathlib import Path

from dimred.build.continuation import last_rate
from dimred.build.network_and_data import build_data, check_ranks, check_splits
from dimred.build.preflight import basis_kind, snapshots_in_the_end
from dimred.config import N_COMPONENTS, DataConfig, StageOneConfig, StageTwoConfig, config_text, load_config
from dimred.console import note
from dimred.data.batches import steps_in_epoch
from dimred.distributed.ranks import ALONE
from dimred.errors import ConfigError
from dimred.files.atomic import atomic_write
from dimred.files.run_names import CONFIG, SNAPSHOTS, STAGE_1_CHECKPOINTS, checkpoint_place, full_checkpoints
from dimred.subspace.spectrum import check_enough
from dimred.weights.series import CheckpointSeries

SPLITS = ("train", "val", "test")
_CONTINUE = {"continued", "continued_random", "continued_alone", "cooldown"}  # from the rate that stage 1 ended with
_MAY_DIFFER = {"seed", "epochs", "checkpoints", "stop"}  # between a stage 1 of a comparison and its configuration
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


def claim_folder(out: Path, two: StageTwoConfig) -> None:
    """Make the folder, or make sure that what is in it was made with the same configuration."""
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


def check_same_stage_1(one: StageOneConfig, run: Path) -> None:
    """Whether a stage 1 was trained with this configuration, its length and what it keeps aside; ConfigError if not."""
    trained = load_config(StageOneConfig, run / CONFIG)
    snapshots = one.snapshots.model_copy(update={"keep": trained.snapshots.keep})
    one = one.model_copy(update={"snapshots": snapshots})
    for key in sorted(StageOneConfig.model_fields.keys() - _MAY_DIFFER):
        if getattr(one, key) != getattr(trained, key):
            raise ConfigError(
                f"--stage-1-config has {key} {getattr(one, key)}, but {run} was trained with {getattr(trained, key)}; "
                "name another folder with --out"
            )


def check_rows(place: Path, data: Path, run: Path) -> None:
    """Whether the rows of an earlier call are of the same stage 1 and data; ConfigError where they are not.

    Args:
        place: their folder, of one seed at one epoch.
        data, run: of this call.
    """
    for row in sorted(place.glob("*.json"))[:1]:
        found = json.loads(row.read_text(encoding="utf-8"))
        for argument, key, typed in (("RUN", "run", run), ("DATA", "data", data)):
            if Path(found[key]).resolve() != typed.resolve():
                raise ConfigError(
                    f"{argument} is {str(typed)!r}, but {place} has rows of {found[key]!r}; name another --out"
                )


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
