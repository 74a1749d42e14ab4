"""Everything that can be checked before the first step. All problems are found at once, and told in one list."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import psutil
from mindspore import nn

from dimred.build.continuation import Continuation, check_same_loss, read_continuation
from dimred.build.network_and_data import check_splits
from dimred.config import StageConfig, StageOneConfig, StageTwoConfig
from dimred.distributed.ranks import Ranks
from dimred.errors import ConfigError, DimredError
from dimred.files.run_names import BASIS, SNAPSHOTS, STATES, checkpoint_place, named_weights
from dimred.models.factory import load_factory
from dimred.run.folder import check_run_folder
from dimred.run.states import read_full_checkpoint
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.spectrum import check_enough
from dimred.vectors.parameters import check_arrays
from dimred.weights.checkpoint_io import read_checkpoint
from dimred.weights.series import CheckpointSeries

Result = TypeVar("Result")


class StageTwoInputs(NamedTuple):
    """What rank 0 has read; None elsewhere."""

    weights: dict[str, np.ndarray] | None  # every parameter of WEIGHTS, by name
    continuation: Continuation | None  # of the continued residual; None for another one
    basis: SubspaceBasis | CheckpointSeries | None  # PCA_MAT, or the snapshots to fit one on; None where none is needed
    snapshots: CheckpointSeries | None  # beside WEIGHTS, up to its epoch; None where there are none, or none are read


def check_stage_1(
    settings: StageOneConfig, network: nn.Cell, data: Path, out: Path, go_on_from: Path | None, resume: bool
) -> tuple[dict[str, np.ndarray], int] | None:
    """Check the data, the folder, the free space, and the checkpoint to begin with.

    Returns:
        The arrays of that checkpoint, and its epoch; None without one.

    Raises:
        ConfigError: lists every problem.
    """
    first, problems = None, _problems_of_run(settings, data, splits_trained_with(settings), out, resume)
    problems.collect(lambda: check_space(out, _stage_1_disk(settings, network), "stage 1"))
    if go_on_from is not None:
        first = problems.collect(lambda: read_full_checkpoint(go_on_from, named_weights("--from", go_on_from)))
    problems.refuse()
    return first


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
    """Check the data, the folder, the free space and memory, WEIGHTS and the basis. Nothing is changed.

    Raises:
        ConfigError: lists every problem, on every rank.
    """

    own = out / BASIS
    if pca_mat is None and resume and (out / STATES).is_dir() and own.exists():
        pca_mat = own  # stage 1 may have gone on since, and its snapshots be others
    begins = not (resume and any((out / STATES).glob("*.ckpt")))

    def read_weights() -> tuple[dict[str, np.ndarray], Continuation | None]:
        arrays, continuation = read_checkpoint(weights), None
        if settings.residual == "continued":
            continuation = read_continuation(settings, network, weights, arrays)
        check_arrays(network.get_parameters(), arrays, named_weights("WEIGHTS", weights))
        check_same_loss(settings, weights)
        return arrays, continuation

    def read_basis() -> tuple[SubspaceBasis | CheckpointSeries | None, CheckpointSeries | None]:
        is_fitted = pca_mat is None and settings.n_components > 0
        is_read = is_fitted or (begins and (settings.start == "best" or settings.adds_average))
        snapshots = snapshots_until(weights, needed=is_fitted) if is_read else None
        if is_fitted and snapshots is not None:
            check_enough(len(snapshots), settings.n_components, basis_kind(settings), snapshots.directory)
        if pca_mat is not None and settings.n_components == 0:
            raise ConfigError(
                f"PCA_MAT is {str(pca_mat)!r}, but n_components is 0, so it has no use; leave PCA_MAT out, or set "
                "n_components, such as --set n_components=32"
            )
        if pca_mat is not None:
            return load_basis(pca_mat, network=network), snapshots
        return (snapshots if is_fitted else None), snapshots

    def read_start() -> None:
        if begins and settings.starts_from_file:
            check_arrays(network.get_parameters(), read_checkpoint(settings.start), f"start {settings.start!r}")

    problems = _problems_of_run(settings, data, splits_read(settings), out, resume)
    problems.collect(lambda: ranks.run_on_rank_zero(read_start))
    arrays, continuation = problems.collect(lambda: ranks.run_on_rank_zero(read_weights)) or (None, None)
    read = problems.collect(lambda: ranks.run_on_rank_zero(read_basis))
    basis, snapshots = read or (None, None)
    problems.collect(lambda: check_space(out, _stage_2_disk(settings, network, pca_mat is None), "stage 2"))
    problems.collect(lambda: check_memory(stage_2_memory(settings, network, ranks.group_size), "stage 2"))
    problems.refuse()
    return StageTwoInputs(arrays, continuation, basis, snapshots)


def snapshots_until(weights: Path, needed: bool = False) -> CheckpointSeries | None:
    """The snapshots beside WEIGHTS, up to its epoch: a stage 1 that went on has later ones.

    Args:
        weights: WEIGHTS.
        needed: whether there must be some; else None where there are none.

    Raises:
        SeriesError: they can't be read; or there must be some, and all are later.
    """
    folder, place = weights.parent / SNAPSHOTS, checkpoint_place(weights)
    if not needed and not (folder.is_dir() and any(folder.iterdir())):  # stage 1 ended before the first of them
        return None
    series = CheckpointSeries.open(folder)
    if place is None or not len(series):
        return series
    if not needed and all(entry.epoch > place.epoch for entry in series.entries):
        return None
    return series.select(until_epoch=place.epoch)


def splits_trained_with(settings: StageOneConfig) -> list[str]:
    """The splits that a run of stage 1 reads."""
    return sorted({"train", settings.data.eval_split} | ({"val"} if settings.stop else set()))


def splits_read(settings: StageTwoConfig) -> list[str]:
    """The splits that a run of stage 2 reads."""
    chooser = {"val"} if settings.keep_best or settings.start == "best" else set()
    return sorted({"train", settings.search_split, settings.data.eval_split} | chooser)


def basis_kind(settings: StageTwoConfig) -> str:
    """The kind of basis that the search works in."""
    return "snapshots" if settings.search == "average" else "pca"


class Problems:
    """Collects what is wrong, and refuses it together."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def collect(self, check: Callable[[], Result]) -> Result | None:
        """What the check returns; None, with a note of the reason, where it raises an error of ours."""
        try:
            return check()
        except DimredError as error:
            self._found.append(str(error))
            return None

    def refuse(self) -> None:
        """Raise ConfigError with everything that was noted; do nothing where nothing was."""
        if len(self._found) == 1:
            raise ConfigError(self._found[0])
        if self._found:
            lines = "".join(f"\n  {number}. {text}" for number, text in enumerate(self._found, start=1))
            raise ConfigError(f"{len(self._found)} problems:{lines}")


def _problems_of_run(settings: StageConfig, data: Path, splits: Sequence[str], out: Path, resume: bool) -> Problems:
    """What is wrong with the data, the folder, and the callback."""
    problems, callback = Problems(), settings.callback
    problems.collect(lambda: check_splits(settings, data, splits))
    problems.collect(lambda: check_run_folder(out, resume=resume))
    if callback is not None:
        problems.collect(lambda: load_factory(callback, "callback"))
    return problems


def check_space(out: Path, needed: int, purpose: str) -> None:
    """Check the disk of ``out``, which need not exist: ``needed`` bytes, less those already in it, must be free.

    Raises:
        ConfigError: there are fewer.
    """
    there = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    free, held = shutil.disk_usage(there).free, sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if free < needed - held:
        raise ConfigError(
            f"--out is {str(out)!r}, on a disk with {free / 1e6:,.0f} MB free; {purpose} takes up to "
            f"{(needed - held) / 1e6:,.0f} MB. Free some, keep fewer checkpoints, or name a folder on another disk"
        )


def check_memory(needed: int, purpose: str) -> None:
    """Check that so many bytes of memory are available; ConfigError where they are not."""
    available = psutil.virtual_memory().available
    if available < needed:
        raise ConfigError(
            f"{purpose} needs {needed / 1e6:,.0f} MB of memory, {available / 1e6:,.0f} MB are available; free some, or "
            "lower n_components"
        )


_FLOAT = 4
_STATES = 3  # the newest two, and the one being written


def _stage_1_disk(config: StageOneConfig, network: nn.Cell) -> int:
    """Bytes of a whole stage 1: snapshots, full checkpoints and states, one more of each while it is written."""
    weights, everything = _sizes(network)
    state = everything + 2 * weights + (everything if config.ema.decay else 0)  # LAMB keeps two moments
    checkpoints = min(config.checkpoints.keep, config.epochs // config.checkpoints.every_epochs + 1) + 1
    snapshots = snapshots_in_the_end(config) + 1
    return _FLOAT * (snapshots * weights + (checkpoints + _STATES) * state)


def snapshots_in_the_end(config: StageOneConfig, steps_per_epoch: int | None = None) -> int:
    """How many snapshots a whole stage 1 leaves; one of few steps in an epoch takes no more than these."""
    per_epoch = min(config.snapshots.per_epoch, steps_per_epoch or config.snapshots.per_epoch)
    taken = max(config.epochs - config.snapshots.first_epoch + 1, 0) * per_epoch
    return min(config.snapshots.keep, taken)


def _stage_2_disk(config: StageTwoConfig, network: nn.Cell, fits_basis: bool) -> int:
    """Bytes of a whole stage 2: checkpoints of start, average, epochs and end, states, the basis it fits."""
    weights, everything = _sizes(network)
    state = 2 * everything + (2 if config.residual == "continued" else 1) * weights  # LAMB keeps two moments
    basis = (config.n_components + 2) * weights if fits_basis else 0
    return _FLOAT * ((config.n_epochs + 4) * 2 * everything + _STATES * state + basis)


def stage_2_memory(config: StageTwoConfig, network: nn.Cell, group_size: int) -> int:
    """Bytes of a rank's share of the basis, which every step reads twice, and of the vectors beside it."""
    vectors = 11 if config.residual == "continued" else 8
    return _FLOAT * (-(-config.n_components // group_size) + vectors) * _sizes(network)[0]


def _sizes(network: nn.Cell) -> tuple[int, int]:
    """Trainable weights, and all parameters."""
    trainable, everything = network.trainable_params(), network.get_parameters()
    return sum(weight.size for weight in trainable), sum(parameter.size for parameter in everything)
