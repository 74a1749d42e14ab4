"""Name the files and folders of a run, and find checkpoints and snapshots by their names."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dimred.errors import ConfigError
from dimred.io.atomic import LOCK, is_temporary
from dimred.io.file_format import CONFIGURATION

# Of every run.
CONFIG = "config.yaml"
VERSIONS = "versions.json"
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"  # folder of event files
PINS = "pins.json"
STATES = "resume"
PROFILE = "profile"  # folder of MindSpore's profiler
MINDSPORE_LOG = "mindspore.log"

# In a rank's folder, from its launcher.
RANK_LOG = "train.log"
ENVIRONMENT_LOG = "env.log"
SCHEDULER_LOG = "scheduler.log"

# Files that a folder may hold without having results of a run.
NOT_RESULTS = frozenset({LOCK, MINDSPORE_LOG, RANK_LOG, ENVIRONMENT_LOG, SCHEDULER_LOG})

# Of stage 1.
STAGE_1_CHECKPOINTS = "checkpoint_stage_1"
SNAPSHOTS = "checkpoint_pca"  # inside it
MANIFEST = "manifest.json"  # of a folder of snapshots
# Where snapshots are, seen from the folders above them.
ABOVE_SNAPSHOTS = (
    SNAPSHOTS,
    f"{STAGE_1_CHECKPOINTS}/{SNAPSHOTS}",
    f"*/{STAGE_1_CHECKPOINTS}/{SNAPSHOTS}",
)

# Of the PCA.
BASIS = "pca_mat.npy"
BASIS_METADATA = "pca_mat.h5"

# Of stage 2.
STAGE_2_CHECKPOINTS = "checkpoint_stage_2"
RESULT = "result.json"


def results_in(folder: Path) -> bool:
    """Return whether a folder holds anything other than a lock, logs and unfinished files."""
    return any(entry.name not in NOT_RESULTS and not is_temporary(entry.name) for entry in folder.iterdir())


class CheckpointEpochs(NamedTuple):
    """The epoch and epoch length in the name of a full checkpoint."""

    epoch: int
    steps_per_epoch: int


def epochs_of_checkpoint(path: Path) -> CheckpointEpochs | None:
    """Read the epoch and the steps per epoch from a file name ``NAME-EPOCH_STEPS.ckpt``; None for any other name."""
    match = re.search(r"-(\d{1,9})_(\d{1,9})$", path.stem)
    return CheckpointEpochs(int(match[1]), int(match[2])) if match else None


def full_checkpoints(folder: Path) -> dict[int, Path]:
    """Find the full checkpoints in stage 1's folder of checkpoints: epoch -> path."""
    return {of_name.epoch: path for path in folder.glob("*.ckpt") if (of_name := epochs_of_checkpoint(path))}


def without_dots(path: Path) -> Path:
    """Return the absolute path without ``..``, so that its parents are the folders that it is in.

    Links are followed only where that is needed, because ``link/..`` is the folder above what the link leads to.
    """
    path = path.absolute()
    if ".." not in path.parts:
        return path
    return path.resolve() if path.name == ".." else path.parent.resolve() / path.name


def run_of(path: Path) -> Path | None:
    """Return the folder of the run that a file or folder is in, or is itself; None if it is in none."""
    path = without_dots(path)
    for folder in (path, *path.parents[:3]):
        is_run = any((folder / name).is_dir() for name in (STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS))
        if is_run and (folder / CONFIG).is_file():
            return folder
    return None


def own_config(run: Path) -> Path:
    """Return the path of the configuration that a run has written into its folder.

    Raises:
        ConfigError: it can't be read, was changed since, or is of a version that this dimred does not read.
    """
    path = run / CONFIG
    try:
        CONFIGURATION.check_seal(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} can't be used: {error}; restore it, and give other values by --config or --set instead"
        ) from None
    return path


def network_of_run(folder: Path, run: Path | None) -> Path:
    """Return the network that a run ended with: stage 2's, or stage 1's last full checkpoint.

    Args:
        folder: what the user gave as WEIGHTS.
        run: the run's folder, see ``run_of``; None for none.

    Raises:
        ConfigError: there is no run, or no network in it yet.
    """
    if run is not None:
        stage_1 = run / STAGE_1_CHECKPOINTS
        final = [*(run / STAGE_2_CHECKPOINTS).glob("*-final.ckpt"), *stage_1.glob("*-final.ckpt")]
        full = full_checkpoints(stage_1)
        if final or full:
            return final[0] if final else full[max(full)]
    what = "no run's folder" if run is None else "a run that has not saved the network it ends with"
    raise ConfigError(f"WEIGHTS is {str(folder)!r}, which is {what}; give a checkpoint or a finished run")


def named_weights(argument: str, path: Path) -> str:
    """Return the beginning of a message about a checkpoint: the argument, its value, and the kind of file if known.

    An example is ``WEIGHTS is 'a/b.ckpt', a network of stage 2, which``.

    Args:
        argument: the argument that names the checkpoint, as the user typed it.
        path: its value, whose folder may tell the kind of checkpoint.
    """
    kinds = {
        SNAPSHOTS: "a snapshot (trainable weights alone; a full checkpoint is {}), ",
        STAGE_2_CHECKPOINTS: "a network of stage 2, ",
        STATES: "a state for --resume (a full checkpoint is {}), ",
    }
    kind = kinds.get(path.parent.name, "")
    if "{}" in kind:
        kind = kind.format(full_checkpoint_beside(path))
    return f"{argument} is {str(path)!r}, {kind}which"


def full_checkpoint_beside(weights: Path) -> str:
    """Return the path of the full checkpoint to suggest in place of these weights, or a pattern if there is none."""
    folder = next((path for path in weights.parents if path.name == STAGE_1_CHECKPOINTS), None)
    if weights.parent.name == STATES:
        folder = weights.parent.with_name(STAGE_1_CHECKPOINTS)
    checkpoints = {} if folder is None else full_checkpoints(folder)
    others = {epoch: path for epoch, path in checkpoints.items() if path != weights}
    return str(others[max(others)]) if others else f"{STAGE_1_CHECKPOINTS}/NAME-EPOCH_STEPS.ckpt of stage 1"


def snapshots_below(folder: Path, patterns: Sequence[str] = (f"{STAGE_1_CHECKPOINTS}/{SNAPSHOTS}",)) -> str:
    """Return the end of a message that says where the snapshots of a run's folder are; empty for other folders.

    Args:
        folder: the folder that the user gave.
        patterns: globs below it that may match folders of snapshots.
    """
    places = sorted(place for pattern in patterns for place in folder.glob(pattern) if place.is_dir())
    return f"; the snapshots of this run are in {str(places[0])!r}" if places else ""
