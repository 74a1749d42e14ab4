"""Name the files and folders of a run, and find checkpoints and snapshots by their names."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from dimred.errors import ConfigError, SeriesError
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
FULL_CHECKPOINT = f"{STAGE_1_CHECKPOINTS}/NAME-EPOCH_STEPS.ckpt"  # as a user finds it in the run's folder
SNAPSHOTS = "checkpoint_pca"  # inside it
MANIFEST = "manifest.json"  # in a folder of snapshots
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


NUMBER = re.compile(r"\d+(?:\.\d+)?")  # in a name; a decimal, such as a loss, is one number
# Names of checkpoints and snapshots, as MindSpore's ``ModelCheckpoint`` makes them, without the ending.
_NAME_EPOCH_STEP = re.compile(r"(?P<network>.+)-(?P<epoch>\d{1,18})_(?P<step>\d{1,18})")


class CheckpointEpochs(NamedTuple):
    """The epoch and epoch length in the name of a full checkpoint."""

    epoch: int
    steps_per_epoch: int


def epochs_of_checkpoint(path: Path) -> CheckpointEpochs | None:
    """Read the epoch and the steps per epoch from a file name ``NAME-EPOCH_STEPS.ckpt``; None for any other name."""
    match = _NAME_EPOCH_STEP.fullmatch(path.stem)
    return CheckpointEpochs(int(match["epoch"]), int(match["step"])) if match else None


def full_checkpoints(folder: Path) -> dict[int, Path]:
    """Find the full checkpoints in stage 1's folder of checkpoints: epoch -> path."""
    return {of_name.epoch: path for path in folder.glob("*.ckpt") if (of_name := epochs_of_checkpoint(path))}


def network_of(name: str) -> str | None:
    """Return the NAME in a file name NAME-EPOCH_STEP, given without its ending; None for any other name."""
    match = _NAME_EPOCH_STEP.fullmatch(name)
    return match["network"] if match else None


def epochs_and_steps(names: Sequence[str]) -> list[tuple[int, int]]:
    """Read (epoch, step since the start of training) from names NAME-EPOCH_STEP, without their endings.

    MindSpore counts steps within an epoch, others from the start of training. If the steps don't increase from file to
    file, they are taken as steps within an epoch, and the largest as an epoch's length.

    Raises:
        SeriesError: they are of several networks, or don't say which of two is older.
    """
    matches = [match for name in names if (match := _NAME_EPOCH_STEP.fullmatch(name))]
    networks = sorted({match["network"] for match in matches})
    if len(networks) > 1:
        few = ", ".join(map(repr, networks[:4]))
        raise SeriesError(f"There are checkpoints of several runs: {few}. Give each run its own folder.")
    keys = [(int(match["epoch"]), int(match["step"])) for match in matches]
    steps = [step for _, step in sorted(keys)]
    if any(before >= after for before, after in pairwise(steps)):
        length = max(*steps, 1)
        first = min(1, *(epoch for epoch, _ in keys))
        keys = [(epoch, (epoch - first) * length + step) for epoch, step in keys]
    for (before, name), (after, other) in pairwise(sorted(zip(keys, names, strict=True))):
        if before[1] >= after[1]:
            raise SeriesError(f"The names {name!r} and {other!r} don't say which is older; rename one of them.")
    return keys


def unplaced_in(series: Sequence[str], others: Sequence[str]) -> str | None:
    """Return the first other name that belongs to a series but has no place in it, such as 1M beside 500k and 750k.

    Such a name differs from the series in numbers alone, at least up to the first number that varies in the series.

    Args:
        series: names of checkpoints without their endings, which differ in numbers alone.
        others: other names in the same folder, without their endings.
    """
    if not others:
        return None
    columns = list(zip(*map(NUMBER.findall, series), strict=True))
    if not columns:
        return None
    varying = (number for number, column in enumerate(columns) if len({*column}) > 1)
    texts = NUMBER.split(series[0])[: next(varying, len(columns) - 1) + 1]
    beginning = re.compile("".join(re.escape(text) + NUMBER.pattern for text in texts))
    return next(filter(beginning.match, others), None)


def without_dots(path: Path) -> Path:
    """Return the absolute path without ``..``, so that its parents are the folders that it is in.

    Links are followed only where that is needed, because ``link/..`` is the folder above the link's target.
    """
    path = path.absolute()
    if ".." not in path.parts:
        return path
    return path.resolve() if path.name == ".." else path.parent.resolve() / path.name


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
            f"{path} can't be used ({error}); restore it, and set other values with --config or --set"
        ) from None
    return path


_KINDS_OF_WEIGHTS = {
    SNAPSHOTS: f", a snapshot (trainable weights alone; a full checkpoint is {FULL_CHECKPOINT}),",
    STAGE_2_CHECKPOINTS: ", a network of stage 2,",
    STATES: f", a state for --resume (a full checkpoint is {FULL_CHECKPOINT}),",
}
"""Folder -> what a message calls the checkpoints in it."""


def named_weights(argument: str, path: Path) -> str:
    """Return what a message calls a checkpoint: argument, value, and the kind of file if its folder shows it.

    An example is ``WEIGHTS 'a/b.ckpt', a network of stage 2,``.
    """
    return f"{argument} {str(path)!r}{_KINDS_OF_WEIGHTS.get(path.parent.name, '')}"


def snapshots_below(folder: Path, patterns: Sequence[str] = (f"{STAGE_1_CHECKPOINTS}/{SNAPSHOTS}",)) -> Path | None:
    """Return the folder with the snapshots of a run's folder; None for other folders.

    Args:
        folder: the folder that the user gave.
        patterns: globs below it that may match folders of snapshots.
    """
    places = sorted(place for pattern in patterns for place in folder.glob(pattern) if place.is_dir())
    return next(iter(places), None)
