"""Before the first step: run every check of what a run reads, and list all problems at once."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from mindspore import nn

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageConfig, StageOneConfig, StageTwoConfig
from dimred.data.batches import Batches
from dimred.distributed.ranks import Ranks
from dimred.errors import ConfigError, DimredError
from dimred.io.run_names import SNAPSHOTS, STATES, checkpoint_place, named_weights
from dimred.models.factory import load_factory
from dimred.stages.estimates import check_search_memory, check_space, disk_of_stage_1, disk_of_stage_2
from dimred.stages.parent import Handover, check_same_task, read_handover
from dimred.stages.run_folder import check_run_folder
from dimred.stages.states import RunStates, read_full_checkpoint
from dimred.stages.steps import build_optimizer
from dimred.stages.task import build_splits
from dimred.subspace.basis import SubspaceBasis
from dimred.vectors.parameters import check_arrays

_log = logging.getLogger(__name__)
Result = TypeVar("Result")
Arrays = dict[str, np.ndarray]


class StageTwoInputs(NamedTuple):
    """The data, weights and basis of a stage 2, after the checks; all but the data is None on ranks other than 0.

    Attributes:
        images: split -> this rank's part of it.
        weights: every parameter of WEIGHTS, by name; None if the run is resumed and the file is gone.
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
    """Check the data, the folder, the free space, callback and optimizer, and the checkpoint to begin with.

    Returns:
        Split -> this rank's part of it; and the arrays of that checkpoint with its epoch, None without one.

    Raises:
        ConfigError: there is a problem; the message lists all of them.
    """
    problems, images = _problems_of_run(settings, data, out, resume, ranks, disk_of_stage_1(settings, network))
    problems.collect(lambda: build_optimizer(settings.optimizer, network, [0.0]))
    first = None
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
    """Check the data, the folder, the free space, the callback, the weights, and what a search needs; change nothing.

    Raises:
        ConfigError: a check failed on this rank or on rank 0; the message lists all problems.
    """
    begins = not (resume and any((out / STATES).glob("state-*.ckpt")))

    def read_weights() -> tuple[Arrays | None, Handover | None]:
        if not begins and not weights.exists():  # the state has everything that the run needs of them
            found = RunStates(out).newest(_log.info)
            if found and "result" in found.progress:  # else it is a state of stage 1
                told = found.progress["result"]["cooldown"]
                shape = settings.cooldown and settings.cooldown.model_dump(include={"factor", "schedule"})
                return None, Handover.of_summary(told | shape) if told and shape else None
        arrays, handover = read_checkpoint(weights), None
        if settings.cooldown is not None:
            handover = read_handover(settings.cooldown, network, weights, arrays)
        check_arrays(network.get_parameters(), arrays, named_weights("WEIGHTS", weights))
        check_same_task(settings, weights)
        return arrays, handover

    def read_snapshots() -> CheckpointSeries | None:
        is_read = begins and (settings.start == "best" or settings.adds_average)
        return snapshots_if_any(weights) if is_read else None

    def read_start() -> None:
        if begins and settings.starts_from_file:
            check_arrays(network.get_parameters(), read_checkpoint(settings.start), f"start {settings.start!r}")

    problems, images = _problems_of_run(settings, data, out, resume, ranks, disk_of_stage_2(settings, network, pca_mat))
    problems.collect(lambda: ranks.run_on_rank_zero(read_start))
    of_weights = problems.collect(lambda: ranks.run_on_rank_zero(read_weights) or (None, None))
    basis = None
    if settings.search is None:
        problems.collect(lambda: _refuse_matrix(pca_mat))
    else:
        from dimred.stages.search import find_basis

        search = settings.search
        basis = problems.collect(
            lambda: ranks.run_on_rank_zero(lambda: find_basis(search, network, weights, pca_mat, out, resume=resume))
        )
        problems.collect(lambda: check_search_memory(settings, network, ranks.group_size))
    snapshots = problems.collect(lambda: ranks.run_on_rank_zero(read_snapshots))
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
    settings: StageConfig, data: Path, out: Path, resume: bool, ranks: Ranks, disk: int
) -> tuple[Problems, dict[str, Batches]]:
    """Build the splits; collect problems with them, the folder, the callback, and the room for ``disk`` bytes."""
    problems, callback, val_chooses = Problems(), settings.callback, settings.uses_val
    images = problems.collect(
        lambda: build_splits(settings, data, settings.splits, ranks=ranks, val_chooses=val_chooses)
    )
    problems.collect(lambda: check_run_folder(out, resume=resume))
    if ranks.is_rank_zero:  # other ranks save no checkpoints, and may lack what a resumed run has already
        problems.collect(lambda: check_space(out, disk))
    if callback is not None:
        problems.collect(lambda: load_factory(callback, "callback"))
    return problems, images or {}


def snapshots_until(weights: Path) -> CheckpointSeries:
    """Open the snapshots beside WEIGHTS up to the epoch in its name, as stage 1 may have gone on; all if it names none.

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
