"""Before the first step, check a run's inputs, report all problems at once, and log the run's length."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from mindspore import get_context, nn

from dimred.checkpoints.layout import arrays_digest
from dimred.checkpoints.states import read_full_checkpoint
from dimred.config import N_COMPONENTS, StageOneConfig, StageTwoConfig
from dimred.errors import ConfigError, number_of
from dimred.factories import load_factory
from dimred.models.summary import memory_of_step, summarise
from dimred.run_files.run_names import BASIS, named_weights
from dimred.runs.begun import Begun
from dimred.runs.first_weights import FirstWeights, read_first_weights
from dimred.runs.run_folder import check_run_folder
from dimred.runs.steps import build_optimizer, warn_of_idle_patterns
from dimred.runs.task import Config, Task
from dimred.stages.disk import FLOAT, check_space, disk_of_stage_1, snapshots_in_the_end
from dimred.stages.method import Plan, plan_of
from dimred.stages.parent import StageOneRun
from dimred.train_step.optimizer_state import UPDATES, check_no_gradient_point
from dimred.vectors.parameters import check_arrays

_log = logging.getLogger(__name__)


def check_stage_1(
    task: Task[StageOneConfig],
    out: Path,
    go_on_from: Path | None = None,
    begun: Begun[StageOneConfig] | None = None,
    *,
    resume: bool = False,
) -> tuple[tuple[dict[str, np.ndarray], int] | None, FirstWeights | None]:
    """Check the folder, the free space, callback and optimizer, and what the run begins with; log the plan.

    Nothing changes, except that the network gets the values of ``model.weights``, the same on all ranks.

    Args:
        task: the task, not yet checked; its problems are reported with the others.
        out: the run's folder.
        go_on_from: another run's full checkpoint to begin with; None for a new network.
        begun: the run in ``out`` that is resumed; None for a new one.
        resume: whether ``out`` may hold a start that was killed before the run had begun.

    Returns:
        A pair: the arrays of ``go_on_from`` with its epoch (None without one, or if the run is resumed); and what the
        network takes from ``model.weights``, on rank 0, or None.

    Raises:
        ConfigError: there is a problem; the message lists all of them.
        DimredError, DataError: from ``Task.check``, the last check.
    """
    disk = disk_of_stage_1(task.config, task.network)
    problems = task.problems
    _check_run(task, out, disk, resume=resume)
    problems.collect(lambda: build_optimizer(task.config.optimizer, task.network, [0.0]))
    problems.collect(lambda: _check_names(task.network))
    weights = problems.collect(lambda: task.ranks.run_on_rank_zero(lambda: _first_weights(task)))
    if weights is not None:
        weights.put(task.network)
    first = None
    if go_on_from is not None and begun is None:
        first = problems.collect(lambda: read_full_checkpoint(go_on_from, named_weights("--from", go_on_from)))
    problems.check()
    task.check()
    if first is not None:
        task.ranks.check_same("--from", arrays_digest(first[0]).encode())
        _check_begin(task, *first)
    warn_of_idle_patterns(task.config.optimizer, task.network)
    log_plan_of_stage_1(task.config, task.steps_per_epoch, disk)
    return first, weights


def _first_weights(task: Task[StageOneConfig]) -> FirstWeights | None:
    model = task.config.model
    return None if model.weights is None else read_first_weights(Path(model.weights), model.new, task.network)


def _check_begin(task: Task[StageOneConfig], arrays: Mapping[str, np.ndarray], epoch: int) -> None:
    """Refuse a full checkpoint that leaves nothing to do, or whose epochs had a different number of steps."""
    epochs = task.config.epochs
    per_epoch = task.steps_per_epoch
    if epoch >= epochs:
        raise ConfigError(f"--from is from epoch {epoch}, but epochs is {epochs}; --set epochs to more than {epoch}")
    n_updates, n_dropped = (int(np.sum(arrays.get(name, 0))) for name in (UPDATES, "loss_scale.overflows"))
    if not n_updates <= epoch * per_epoch <= n_updates + n_dropped:
        raise ConfigError(
            f"--from is from epoch {epoch}, after {n_updates} updates, but an epoch has {per_epoch} steps here, and "
            "the rate depends on the updates; use that run's data, batch size and devices"
        )


def check_stage_2(
    task: Task[StageTwoConfig],
    parent: StageOneRun,
    pca_mat: Path | None,
    out: Path,
    begun: Begun[StageTwoConfig] | None = None,
    *,
    resume: bool = False,
) -> Plan[Any]:
    """Check the folder, the free space, the callback, the weights, and what the method needs.

    Nothing changes, except that the ranks' networks are made equal. The length of the run is logged.

    Args:
        task: the task, not yet checked; its problems are reported with the others.
        parent: the run that WEIGHTS come from.
        pca_mat: PCA_MAT, or None.
        out: the run's folder.
        begun: the run in ``out`` that is resumed; its basis is used if PCA_MAT is None. None for a new run.
        resume: whether ``out`` may hold a start that was killed before the run had begun.

    Returns:
        The method's plan, ready to build.

    Raises:
        ConfigError: a check failed on this rank or on rank 0; the message lists all problems.
        DimredError, DataError: from ``Task.check``, the last check.
    """
    config = task.config
    network = task.network
    problems = task.problems
    if begun is not None and pca_mat is None and (pin := begun.pins.get("PCA_MAT")) is not None:
        pca_mat = out / BASIS if pin.path is None else Path(pin.path)
    plan = plan_of(config)
    disk = plan.disk(network, pca_mat)
    _check_run(task, out, disk, resume=resume)
    problems.collect(lambda: _check_weights(parent, network, config))
    plan.check(task, parent, pca_mat)
    problems.check()
    task.check()
    log_plan(config, task.steps_per_epoch, disk)
    return plan


def _check_weights(parent: StageOneRun, network: nn.Cell, config: StageTwoConfig) -> None:
    check_no_gradient_point(parent.arrays, parent.title)
    check_arrays(network.get_parameters(), parent.arrays, parent.title)
    parent.check_continued_by(config)


def _check_names(network: nn.Cell) -> None:
    """Refuse a network with a parameter whose name a full checkpoint uses for something else."""
    if any(parameter.name == "epoch" for parameter in network.get_parameters()):
        raise ConfigError(
            "model.name is a network with a parameter named 'epoch', but a full checkpoint stores its epoch under that "
            "name; rename the parameter"
        )


def _check_run(task: Task[Config], out: Path, disk: int, *, resume: bool) -> None:
    """Collect problems with the folder, the callback, and the room for ``disk`` bytes."""
    callback = task.config.callback
    problems = task.problems
    problems.collect(lambda: check_run_folder(out, resume=resume))
    if task.ranks.is_rank_zero:  # other ranks save no checkpoints, and may lack the files of a resumed run
        problems.collect(lambda: check_space(out, disk))
    if callback is not None:
        problems.collect(lambda: load_factory(callback, "callback"))
    if _may_lack_memory(task):
        problems.collect(lambda: _check_memory(task))


def _may_lack_memory(task: Task[Config]) -> bool:
    """Return whether a built-in network, on inputs of known shape, may need more memory than this host has free.

    These networks keep less than a thousand times their input, so small images need no estimate; an estimate costs a
    forward pass.
    """
    shape = task.input_shape
    if ":" in task.config.model.name or shape is None or get_context("device_target") != "CPU":
        return False
    n_bytes = 1000 * FLOAT * task.config.data.batch_size * math.prod(shape)
    return n_bytes >= psutil.virtual_memory().available


def _check_memory(task: Task[Config]) -> None:
    """Refuse a batch if less than half of the memory that a step is estimated to take is available."""
    name = task.config.model.name
    data = task.config.data
    available = psutil.virtual_memory().available
    n_bytes = memory_of_step(summarise(task.network, (1, *(task.input_shape or ()))), data.batch_size)
    if available < n_bytes / 2:
        raise ConfigError(
            f"a step of {name} on {data.batch_size} images of {data.image_size} pixels takes about "
            f"{n_bytes / 1e9:,.0f} GB of memory, but {available / 1e9:,.1f} GB are available; lower data.batch_size "
            "(and raise accumulation by as much), lower data.image_size, or take a smaller network"
        )


def log_plan_of_stage_1(config: StageOneConfig, steps_per_epoch: int, disk: int) -> None:
    """Log stage 1's steps and disk space, and whether it leaves the snapshots that stage 2 needs."""
    log_plan(config, steps_per_epoch, disk)
    n_snapshots = snapshots_in_the_end(config, steps_per_epoch)
    if n_snapshots == 0:
        _log.warning(
            "this run keeps no snapshots, so stage 2 will have nothing to search in or to average: "
            f"snapshots.first_epoch is {config.snapshots.first_epoch}, and epochs is {config.epochs}"
        )
    elif n_snapshots <= N_COMPONENTS:
        hint = f"a search in {N_COMPONENTS} directions would need {N_COMPONENTS + 1}"
        if n_snapshots > 1:
            hint += f"; give stage 2 --set search.n_components={n_snapshots - 1}, or keep more"
        _log.info(f"this run keeps {number_of(n_snapshots, 'snapshot')}; {hint}")


def log_plan(config: StageOneConfig | StageTwoConfig, steps_per_epoch: int, disk: int) -> None:
    """Log how many steps the run makes in all, and that it takes up to ``disk`` bytes."""
    n_epochs = config.n_epochs
    ends = "up to " if isinstance(config, StageOneConfig) and config.stop else ""
    _log.info(
        f"{ends}{number_of(n_epochs, 'epoch')} of {number_of(steps_per_epoch, 'step')}, {n_epochs * steps_per_epoch:,} "
        f"in all; snapshots, checkpoints and states take up to {disk / 1e6:,.0f} MB of disk"
    )
