"""Before the first step: run every check and list all problems at once, log the plan, shorten a run to one step."""

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import psutil
from mindspore import nn

from dimred.builders.handover import Handover, check_same_loss, read_handover
from dimred.builders.task import build_splits
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageConfig, StageOneConfig, StageTwoConfig
from dimred.data.batches import Batches
from dimred.distributed.ranks import Ranks
from dimred.errors import ConfigError, DimredError
from dimred.io.run_names import SNAPSHOTS, STATES, checkpoint_place, named_weights
from dimred.models.factory import load_factory
from dimred.subspace.basis import SubspaceBasis
from dimred.trainer.session import check_run_folder
from dimred.trainer.states import RunStates, read_full_checkpoint
from dimred.vectors.parameters import check_arrays

_log = logging.getLogger(__name__)
Result = TypeVar("Result")
Settings = TypeVar("Settings", bound=StageConfig)
Arrays = dict[str, np.ndarray]


class StageTwoInputs(NamedTuple):
    """Data, weights and basis of a stage 2, read and checked; all but the data on rank 0 alone, and None elsewhere.

    Attributes:
        images: split -> this rank's part of it.
        weights: every parameter of WEIGHTS, by name; None if a resumed run does not need them.
        handover: what the cooldown takes over; None without a cooldown.
        snapshots: the snapshots beside WEIGHTS, up to its epoch; None if there are none, or none are needed.
        basis: the basis of a search, or the snapshots to fit one on; None without a search.
    """

    images: dict[str, Batches]
    weights: Arrays | None
    handover: Handover | None
    snapshots: CheckpointSeries | None
    basis: SubspaceBasis | CheckpointSeries | None


def check_stage_1(
    settings: StageOneConfig,
    network: nn.Cell,
    data: Path,
    out: Path,
    go_on_from: Path | None,
    resume: bool,
    ranks: Ranks,
) -> tuple[dict[str, Batches], tuple[Arrays, int] | None]:
    """Check the data, the folder, the free space, and the checkpoint to begin with.

    Returns:
        Split -> this rank's part of it; and the arrays of that checkpoint with its epoch, None without one.

    Raises:
        ConfigError: there is a problem; the message lists all of them.
    """
    problems, images = _problems_of_run(settings, data, out, resume, ranks)
    first = None
    problems.collect(lambda: check_space(out, disk_of_stage_1(settings, network), "stage 1"))
    if go_on_from is not None:
        first = problems.collect(lambda: read_full_checkpoint(go_on_from, named_weights("--from", go_on_from)))
    problems.refuse()
    return images, first


def check_stage_2(
    settings: StageTwoConfig,
    network: nn.Cell,
    data: Path,
    weights: Path,
    pca_mat: Path | None,
    out: Path,
    resume: bool,
    ranks: Ranks,
) -> StageTwoInputs:
    """Check the data, the folder, the free space, WEIGHTS, and what a search needs; change nothing.

    Raises:
        ConfigError: there is a problem, on any rank; the message lists all of them.
    """
    begins = not (resume and any((out / STATES).glob("state-*.ckpt")))

    def read_weights() -> tuple[Arrays | None, Handover | None]:
        if not begins and not weights.exists():  # the state has everything that the run needs of them
            found = RunStates(out).newest(_log.info)
            told = found and found.progress["result"]["cooldown"]
            shape = settings.cooldown and settings.cooldown.model_dump(include={"factor", "schedule"})
            return None, Handover.of_summary(told | shape) if told and shape else None
        arrays, handover = read_checkpoint(weights), None
        if settings.cooldown is not None:
            handover = read_handover(settings.cooldown, network, weights, arrays)
        check_arrays(network.get_parameters(), arrays, named_weights("WEIGHTS", weights))
        check_same_loss(settings, weights)
        return arrays, handover

    def read_snapshots() -> CheckpointSeries | None:
        is_read = begins and (settings.start == "best" or settings.adds_average)
        return snapshots_if_any(weights) if is_read else None

    def read_start() -> None:
        if begins and settings.starts_from_file:
            check_arrays(network.get_parameters(), read_checkpoint(settings.start), f"start {settings.start!r}")

    problems, images = _problems_of_run(settings, data, out, resume, ranks)
    problems.collect(lambda: ranks.run_on_rank_zero(read_start))
    of_weights = problems.collect(lambda: ranks.run_on_rank_zero(read_weights) or (None, None))
    basis = None
    if settings.search is None:
        problems.collect(lambda: _refuse_matrix(pca_mat))
    else:
        from dimred.trainer.search_run import find_basis

        search = settings.search
        basis = problems.collect(
            lambda: ranks.run_on_rank_zero(lambda: find_basis(search, network, weights, pca_mat, out, resume=resume))
        )
        problems.collect(lambda: check_search_memory(settings, network, ranks.group_size))
    snapshots = problems.collect(lambda: ranks.run_on_rank_zero(read_snapshots))
    problems.collect(lambda: check_space(out, disk_of_stage_2(settings, network, pca_mat), "stage 2"))
    problems.refuse()
    return StageTwoInputs(images, *(of_weights or (None, None)), snapshots, basis)


def _refuse_matrix(pca_mat: Path | None) -> None:
    if pca_mat is not None:
        raise ConfigError(
            f"PCA_MAT is {str(pca_mat)!r}, but search is null, so it has no use; leave PCA_MAT out, or search in "
            "it, such as --set search.n_components=32"
        )


class Problems:
    """The problems that several checks found, to be reported in one error."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def collect(self, check: Callable[[], Result]) -> Result | None:
        """Run a check and return its result; if it raises a DimredError, note the reason and return None."""
        try:
            return check()
        except DimredError as error:
            self._found.append(str(error))
            return None

    def refuse(self) -> None:
        """Raise a ConfigError with all problems noted, if there are any."""
        if len(self._found) == 1:
            raise ConfigError(self._found[0])
        if self._found:
            lines = "".join(f"\n  {number}. {text}" for number, text in enumerate(self._found, start=1))
            raise ConfigError(f"{len(self._found)} problems:{lines}")


def _problems_of_run(
    settings: StageConfig, data: Path, out: Path, resume: bool, ranks: Ranks
) -> tuple[Problems, dict[str, Batches]]:
    """Build the splits, and collect problems with them, the folder and the callback."""
    problems, callback, val_chooses = Problems(), settings.callback, settings.uses_val
    images = problems.collect(
        lambda: build_splits(settings, data, settings.splits, ranks=ranks, val_chooses=val_chooses)
    )
    problems.collect(lambda: check_run_folder(out, resume=resume))
    if callback is not None:
        problems.collect(lambda: load_factory(callback, "callback"))
    return problems, images or {}


def check_space(out: Path, needed: int, purpose: str) -> None:
    """Check that ``needed`` bytes, less those already in ``out``, are free on its disk; ``out`` need not exist.

    Raises:
        ConfigError: fewer bytes are free.
    """
    there = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    free, held = shutil.disk_usage(there).free, sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if free < needed - held:
        raise ConfigError(
            f"--out is {str(out)!r}, on a disk with {free / 1e6:,.0f} MB free; {purpose} takes up to "
            f"{(needed - held) / 1e6:,.0f} MB. Free some, keep fewer checkpoints, or name a folder on another disk"
        )


_FLOAT = 4
_STATES = 3  # the newest two, and the one being written


def say_plan(config: StageConfig, n_epochs: int, steps_per_epoch: int, disk: int) -> None:
    """Log how many steps a whole run makes, and how much disk it takes, before the first step is compiled."""
    ends = "up to " if isinstance(config, StageOneConfig) and config.stop else ""
    _log.info(
        f"{ends}{_counted(n_epochs, 'epoch')} of {_counted(steps_per_epoch, 'step')}, {n_epochs * steps_per_epoch:,} "
        f"in all; snapshots, checkpoints and states take up to {disk / 1e6:,.0f} MB of disk"
    )


def _counted(n: int, what: str) -> str:
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


def check_search_memory(config: StageTwoConfig, network: nn.Cell, group_size: int) -> None:
    """Check that a rank's share of the basis fits into memory, with the vectors beside it; ConfigError if not."""
    needed, available = search_memory(config, network, group_size), psutil.virtual_memory().available
    if available < needed:
        raise ConfigError(
            f"the search needs {needed / 1e6:,.0f} MB of memory, {available / 1e6:,.0f} MB are available; free some, "
            "or lower search.n_components"
        )


def search_memory(config: StageTwoConfig, network: nn.Cell, group_size: int) -> int:
    """Estimate the bytes of a rank's share of the basis, which every step reads twice, and of the vectors beside it."""
    n_components = config.search.n_components if config.search else 0
    vectors = 8 if config.cooldown is None else 11
    return _FLOAT * (-(-n_components // group_size) + vectors) * _sizes(network)[0]


def _sizes(network: nn.Cell) -> tuple[int, int]:
    """Count the trainable weights, and all parameters."""
    trainable, everything = network.trainable_params(), network.get_parameters()
    return sum(weight.size for weight in trainable), sum(parameter.size for parameter in everything)


def snapshots_until(weights: Path) -> CheckpointSeries:
    """Return the snapshots beside WEIGHTS, up to its epoch: a stage 1 that went on has later ones too.

    Raises:
        SeriesError: there are no snapshots, they can't be read, or all are later.
    """
    series, place = CheckpointSeries.open(weights.parent / SNAPSHOTS), checkpoint_place(weights)
    return series if place is None or not len(series) else series.select(until_epoch=place.epoch)


def snapshots_if_any(weights: Path) -> CheckpointSeries | None:
    """Return the series of ``snapshots_until``, or None if stage 1 kept no snapshot up to the epoch of WEIGHTS."""
    folder, place = weights.parent / SNAPSHOTS, checkpoint_place(weights)
    if not (folder.is_dir() and any(folder.iterdir())):
        return None
    if place is not None and all(entry.epoch > place.epoch for entry in CheckpointSeries.open(folder).entries):
        return None
    return snapshots_until(weights)


def snapshots_in_the_end(config: StageOneConfig, steps_per_epoch: int | None = None) -> int:
    """Return how many snapshots a whole stage 1 leaves.

    Args:
        config: configuration of stage 1.
        steps_per_epoch: limit on the snapshots of an epoch; None if not known.
    """
    per_epoch = min(config.snapshots.per_epoch, steps_per_epoch or config.snapshots.per_epoch)
    taken = max(config.epochs - config.snapshots.first_epoch + 1, 0) * per_epoch
    return min(config.snapshots.keep, taken)


def shortened(settings: Settings, images: Mapping[str, Batches]) -> tuple[Settings, dict[str, Batches]]:
    """Return settings and splits of a run of one step that goes through every phase of the whole run.

    With ``stop``, a run of stage 1 makes two steps, because an average needs two snapshots.

    Args:
        settings: settings of the whole run; build the step from these first, as no schedule can be so short.
        images: split -> its batches.
    """
    changes: dict[str, Any] = {"epochs": 1, "reestimate_batches": 1}
    if isinstance(settings, StageOneConfig):
        snapshots = settings.snapshots.model_copy(update={"per_epoch": 1, "first_epoch": 1})
        changes |= {"snapshots": snapshots, "evaluate_every": 1}
        if settings.stop is not None:
            changes |= {"epochs": 2, "stop": settings.stop.model_copy(update={"every_epochs": 1})}
    return settings.model_copy(update=changes), {split: part.shortened(1) for split, part in images.items()}
