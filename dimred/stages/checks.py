"""Before the first step, check a run's inputs, report all problems at once, and log how long the run will be."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
from mindspore import get_context, nn

from dimred.checkpoints.layout import arrays_digest
from dimred.checkpoints.states import read_full_checkpoint
from dimred.config import N_COMPONENTS, StageConfig, StageOneConfig, StageTwoConfig
from dimred.errors import ConfigError, number_of
from dimred.io.run_names import BASIS, named_weights
from dimred.io.system import free_bytes
from dimred.runs.begun import Begun
from dimred.runs.run_folder import check_run_folder
from dimred.runs.steps import build_optimizer, warn_of_idle_patterns
from dimred.runs.task import Settings, Task
from dimred.stages.parent import StageOneRun
from dimred.train_step.optimizer_state import UPDATES, check_no_gradient_point
from dimred.vectors.parameters import check_arrays

if TYPE_CHECKING:
    from dimred.checkpoints.series import CheckpointSeries
    from dimred.stages.cooldown import Cooldown
    from dimred.subspace.basis import SubspaceBasis

_log = logging.getLogger(__name__)

_FLOAT = 4  # bytes
_STATES = 3  # the newest two, and the one being written


def check_stage_1(
    task: Task[StageOneConfig],
    out: Path,
    go_on_from: Path | None = None,
    begun: Begun[StageOneConfig] | None = None,
    *,
    resume: bool = False,
) -> tuple[dict[str, np.ndarray], int] | None:
    """Check the folder, the free space, callback and optimizer, and the checkpoint to begin with; log the plan.

    Nothing changes, except that the ranks' networks are made equal.

    Args:
        task: the task, not yet checked; its problems are reported with the others.
        out: folder of the run.
        go_on_from: a full checkpoint of another run to begin with; None for a new network.
        begun: the run in ``out`` that is resumed; None for a new one.
        resume: whether ``out`` may hold a start that was killed before the run had begun.

    Returns:
        The arrays of that checkpoint with its epoch; None without one, or for a run that is resumed.

    Raises:
        ConfigError: there is a problem; the message lists all of them.
        DimredError, DataError: as ``Task.check``, which comes last.
    """
    disk, problems = disk_of_stage_1(task.settings, task.network), task.problems
    _check_run(task, out, disk, resume=resume)
    problems.collect(lambda: build_optimizer(task.settings.optimizer, task.network, [0.0]))
    problems.collect(lambda: _check_names(task.network))
    first = None
    if go_on_from is not None and begun is None:
        first = problems.collect(lambda: read_full_checkpoint(go_on_from, named_weights("--from", go_on_from)))
    problems.check()
    task.check()
    if first is not None:
        task.ranks.check_same("--from", arrays_digest(first[0]).encode())
        _check_begin(task, *first)
    warn_of_idle_patterns(task.settings.optimizer, task.network)
    log_plan_of_stage_1(task.settings, task.steps_per_epoch, disk)
    return first


def _check_begin(task: Task[StageOneConfig], arrays: Mapping[str, np.ndarray], epoch: int) -> None:
    """Refuse a full checkpoint that leaves nothing to do, or whose epochs had a different number of steps."""
    epochs, per_epoch = task.settings.epochs, task.steps_per_epoch
    if epoch >= epochs:
        raise ConfigError(f"--from is of epoch {epoch}, but epochs is {epochs}; --set epochs to more than {epoch}")
    n_updates, n_dropped = (int(np.sum(arrays.get(name, 0))) for name in (UPDATES, "loss_scale.overflows"))
    if not n_updates <= epoch * per_epoch <= n_updates + n_dropped:
        raise ConfigError(
            f"--from is of epoch {epoch} and has made {n_updates} updates, but an epoch has {per_epoch} steps here, "
            "and the rate depends on the updates; give the data, the batch size and the devices of that run"
        )


def check_stage_2(
    task: Task[StageTwoConfig],
    parent: StageOneRun,
    pca_mat: Path | None,
    out: Path,
    begun: Begun[StageTwoConfig] | None = None,
    *,
    resume: bool = False,
) -> "tuple[Cooldown | None, SubspaceBasis | CheckpointSeries | None]":
    """Check the folder, the free space, the callback, the weights, and the needs of a search; plan the cooldown.

    Nothing changes, except that the ranks' networks are made equal. The plan of the run is logged.

    Args:
        task: the task, not yet checked; its problems are reported with the others.
        parent: the run that WEIGHTS come from.
        pca_mat: PCA_MAT, or None.
        out: folder of the run.
        begun: the run in ``out`` that is resumed, whose basis is taken if PCA_MAT is None; None for a new one.
        resume: whether ``out`` may hold a start that was killed before the run had begun.

    Returns:
        The cooldown as it begins, on every rank; and the basis of a search, or the snapshots to fit one on, on rank 0.
        Whichever does not apply is None.

    Raises:
        ConfigError: a check failed on this rank or on rank 0; the message lists all problems.
        DimredError, DataError: as ``Task.check``, which comes last.
    """
    settings, network, ranks, problems = task.settings, task.network, task.ranks, task.problems
    if begun is not None and pca_mat is None and (pin := begun.pins.get("PCA_MAT")) is not None:
        pca_mat = out / BASIS if pin.path is None else Path(pin.path)
    disk = disk_of_stage_2(settings, network, pca_mat)
    _check_run(task, out, disk, resume=resume)
    problems.collect(lambda: _check_weights(parent, network, settings))
    cooldown = basis = None
    if settings.method == "cooldown":
        from dimred.stages.cooldown import check_no_matrix, plan_cooldown

        cooldown = problems.collect(lambda: plan_cooldown(settings.cooldown, network, parent))
        problems.collect(lambda: check_no_matrix(pca_mat))
    else:
        from dimred.stages.search_basis import check_search_memory, find_basis

        search = settings.search
        basis = problems.collect(lambda: ranks.run_on_rank_zero(lambda: find_basis(search, network, parent, pca_mat)))
        problems.collect(lambda: check_search_memory(settings, network, ranks))
    problems.check()
    task.check()
    log_plan(settings, task.steps_per_epoch, disk)
    return cooldown, basis


def _check_weights(parent: StageOneRun, network: nn.Cell, settings: StageTwoConfig) -> None:
    check_no_gradient_point(parent.arrays, parent.title)
    check_arrays(network.get_parameters(), parent.arrays, parent.title)
    parent.check_continued_by(settings)


def _check_names(network: nn.Cell) -> None:
    """Refuse a network with a parameter that is named like something else in a full checkpoint."""
    if any(parameter.name == "epoch" for parameter in network.get_parameters()):
        raise ConfigError(
            "model.name is a network with a parameter named 'epoch', under which a full checkpoint stores its "
            "epoch; rename the parameter"
        )


def _check_run(task: Task[Settings], out: Path, disk: int, *, resume: bool) -> None:
    """Collect problems with the folder, the callback, and the room for ``disk`` bytes."""
    callback, problems = task.settings.callback, task.problems
    problems.collect(lambda: check_run_folder(out, resume=resume))
    if task.ranks.is_rank_zero:  # other ranks save no checkpoints, and may lack the files of a resumed run
        problems.collect(lambda: check_space(out, disk))
    if callback is not None:
        from dimred.models.factory import load_factory

        problems.collect(lambda: load_factory(callback, "callback"))
    if _may_lack_memory(task.settings):
        problems.collect(lambda: _check_memory(task))


def _may_lack_memory(settings: StageConfig) -> bool:
    """Return whether a built-in network on class folders, whose input is known, may need more memory than a CPU has.

    Those networks keep less than a thousand times their input, so that small images need no estimate, which costs a
    forward pass.
    """
    is_built_in = ":" not in settings.model.name and settings.data.dataset is None
    n_bytes = 1000 * _FLOAT * settings.data.batch_size * 3 * settings.data.image_size**2
    return is_built_in and get_context("device_target") == "CPU" and n_bytes >= psutil.virtual_memory().available


def _check_memory(task: Task[Settings]) -> None:
    """Refuse a batch for which a CPU has less than half of the memory that a step is estimated to take."""
    from dimred.models.summary import memory_of_step, summarise

    name, data, available = task.settings.model.name, task.settings.data, psutil.virtual_memory().available
    n_bytes = memory_of_step(summarise(task.network, (1, 3, data.image_size, data.image_size)), data.batch_size)
    if available < n_bytes / 2:
        raise ConfigError(
            f"a step of {name} on {data.batch_size} images of {data.image_size} pixels takes about "
            f"{n_bytes / 1e9:,.0f} GB of memory, and {available / 1e9:,.1f} GB are available; lower data.batch_size "
            "(and raise accumulation by as much), lower data.image_size, or take a smaller network"
        )


def log_plan_of_stage_1(config: StageOneConfig, steps_per_epoch: int, disk: int) -> None:
    """Log the steps and disk of a whole stage 1, and whether it leaves the snapshots that a stage 2 needs."""
    log_plan(config, steps_per_epoch, disk)
    n_snapshots = snapshots_in_the_end(config, steps_per_epoch)
    if n_snapshots == 0:
        _log.warning(
            f"this run keeps no snapshots, so stage 2 will have no snapshots to search in or average: "
            f"snapshots.first_epoch is {config.snapshots.first_epoch}, and epochs is {config.epochs}"
        )
    elif n_snapshots <= N_COMPONENTS:
        hint = f"a search in {N_COMPONENTS} directions would need {N_COMPONENTS + 1}"
        _log.info(f"this run keeps {number_of(n_snapshots, 'snapshot')}; {hint}")


def log_plan(config: StageOneConfig | StageTwoConfig, steps_per_epoch: int, disk: int) -> None:
    """Log how many steps a whole run makes, and that it takes up to ``disk`` bytes."""
    n_epochs = config.n_epochs
    ends = "up to " if isinstance(config, StageOneConfig) and config.stop else ""
    _log.info(
        f"{ends}{number_of(n_epochs, 'epoch')} of {number_of(steps_per_epoch, 'step')}, {n_epochs * steps_per_epoch:,} "
        f"in all; snapshots, checkpoints and states take up to {disk / 1e6:,.0f} MB of disk"
    )


def disk_of_stage_1(config: StageOneConfig, network: nn.Cell) -> int:
    """Return about how many bytes a whole stage 1 takes on disk: snapshots, full checkpoints and states.

    One more of each is counted than is kept, because a new file is written before the oldest is removed.
    """
    weights, everything = _sizes(network)
    state = everything + 2 * weights + (everything if config.ema.decay else 0)  # AdamW keeps two moments
    checkpoints = min(config.checkpoints.keep, config.epochs // config.checkpoints.every_epochs + 1) + 1
    snapshots = snapshots_in_the_end(config) + 1
    return _FLOAT * (snapshots * weights + (checkpoints + _STATES) * state)


def disk_of_stage_2(config: StageTwoConfig, network: nn.Cell, pca_mat: Path | None) -> int:
    """Return about how many bytes a whole stage 2 takes on disk: checkpoints, states, and a basis that it fits."""
    weights, everything = _sizes(network)
    is_search = config.method == "search"
    state = 2 * everything + (1 if is_search else 2) * weights  # AdamW keeps two moments
    basis = (config.search.n_components + 2) * weights if is_search and pca_mat is None else 0
    return _FLOAT * ((config.n_epochs + 4) * 2 * everything + _STATES * state + basis)


def check_space(out: Path, n_bytes: int) -> None:
    """Check that a whole run has room for ``n_bytes`` on its disk, if the disk says how much is free.

    The folder need not exist; the bytes in it count as the run's own.
    """
    there = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    free, in_use = free_bytes(there), sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if free is not None and free < n_bytes - in_use:
        raise ConfigError(
            f"--out is {str(out)!r}, on a disk with {free / 1e6:,.0f} MB free; the run takes up to "
            f"{(n_bytes - in_use) / 1e6:,.0f} MB. Free some, keep fewer checkpoints, or name a folder on another disk"
        )


def _sizes(network: nn.Cell) -> tuple[int, int]:
    """Count the trainable weights, and all parameters."""
    trainable, everything = network.trainable_params(), network.get_parameters()
    return sum(weight.size for weight in trainable), sum(parameter.size for parameter in everything)


def snapshots_in_the_end(config: StageOneConfig, steps_per_epoch: int | None = None) -> int:
    """Return how many snapshots a whole stage 1 leaves; an epoch has no more than ``steps_per_epoch``, if known."""
    per_epoch = min(config.snapshots.per_epoch, steps_per_epoch or config.snapshots.per_epoch)
    n_snapshots = max(config.epochs - config.snapshots.first_epoch + 1, 0) * per_epoch
    return min(config.snapshots.keep, n_snapshots)
