"""Before the first step: run every check of what a run reads, and list all problems at once."""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.errors import ConfigError, Problems
from dimred.io.run_names import named_weights
from dimred.models.factory import load_factory
from dimred.stages.cooldown import check_cooldown_state, plan_cooldown
from dimred.stages.estimates import check_space, disk_of_stage_1, disk_of_stage_2, say_plan, say_plan_of_stage_1
from dimred.stages.parent import StageOneRun
from dimred.stages.run_folder import check_run_folder
from dimred.stages.states import read_full_checkpoint
from dimred.stages.steps import build_optimizer
from dimred.stages.task import Settings, Task
from dimred.subspace.basis import SubspaceBasis
from dimred.vectors.parameters import check_arrays


def check_stage_1(
    task: Task[StageOneConfig], problems: Problems, out: Path, go_on_from: Path | None = None, *, resume: bool = False
) -> tuple[dict[str, np.ndarray], int] | None:
    """Check the folder, the free space, callback and optimizer, and the checkpoint to begin with; log the plan.

    Nothing is changed.

    Args:
        task: the task, whose problems are in ``problems``.
        problems: gets the problems.
        out: folder of the run.
        go_on_from: a full checkpoint of another run to begin with; None for a new network.
        resume: whether the run may be resumed.

    Returns:
        The arrays of that checkpoint with its epoch; None without one.

    Raises:
        ConfigError: there is a problem; the message lists all of them.
    """
    disk = disk_of_stage_1(task.settings, task.network)
    _check_run(task, problems, out, disk, resume=resume)
    problems.collect(lambda: build_optimizer(task.settings.optimizer, task.network, [0.0]))
    first = None
    if go_on_from is not None:
        first = problems.collect(lambda: read_full_checkpoint(go_on_from, named_weights("--from", go_on_from)))
    problems.refuse()
    task.check()
    say_plan_of_stage_1(task.settings, task.steps_per_epoch, disk)
    return first


def check_stage_2(
    task: Task[StageTwoConfig],
    problems: Problems,
    parent: StageOneRun,
    pca_mat: Path | None,
    out: Path,
    *,
    resume: bool = False,
    allowed: Collection[str] = (),
) -> SubspaceBasis | CheckpointSeries | None:
    """Check the folder, the free space, the callback, the weights, and what a search needs; log the plan.

    Nothing is changed.

    Args:
        task: the task, whose problems are in ``problems``.
        problems: gets the problems.
        parent: the run that WEIGHTS come from.
        pca_mat: PCA_MAT, or None.
        out: folder of the run.
        resume: whether the run may be resumed.
        allowed: keys that may differ from stage 1's.

    Returns:
        The basis of a search, or the snapshots to fit one on, on rank 0; None elsewhere, and without a search.

    Raises:
        ConfigError: a check failed on this rank or on rank 0; the message lists all problems.
    """
    settings, network, ranks = task.settings, task.network, task.ranks

    def check_weights() -> None:
        if parent.fault is not None:
            raise parent.fault
        if settings.cooldown is not None:
            check_cooldown_state(plan_cooldown(settings.cooldown, network, parent), network, parent)
        if not parent.is_gone:
            check_arrays(network.get_parameters(), parent.arrays, parent.typed)
        parent.check_continued_by(settings, allowed)
        if not parent.is_gone and settings.starts_from_file:
            check_arrays(network.get_parameters(), read_checkpoint(settings.start), f"start {settings.start!r}")

    disk = disk_of_stage_2(settings, network, pca_mat)
    _check_run(task, problems, out, disk, resume=resume)
    problems.collect(lambda: ranks.run_on_rank_zero(check_weights))
    basis = None
    if (search := settings.search) is None:
        problems.collect(lambda: _refuse_matrix(pca_mat))
    else:
        from dimred.stages.search import check_search_memory, find_basis

        basis = problems.collect(
            lambda: ranks.run_on_rank_zero(lambda: find_basis(search, network, parent, pca_mat, out, resume=resume))
        )
        problems.collect(lambda: check_search_memory(settings, network, ranks))
    problems.refuse()
    task.check()
    say_plan(settings, task.steps_per_epoch, disk)
    return basis


def _refuse_matrix(pca_mat: Path | None) -> None:
    if pca_mat is not None:
        raise ConfigError(
            f"PCA_MAT is {str(pca_mat)!r}, but search is null, so it has no use; leave PCA_MAT out, or search in "
            "it, such as --set search.n_components=32"
        )


def _check_run(task: Task[Settings], problems: Problems, out: Path, disk: int, *, resume: bool) -> None:
    """Collect problems with the folder, the callback, and the room for ``disk`` bytes."""
    callback = task.settings.callback
    problems.collect(lambda: check_run_folder(out, resume=resume))
    if task.ranks.is_rank_zero:  # other ranks save no checkpoints, and may lack what a resumed run has already
        problems.collect(lambda: check_space(out, disk))
    if callback is not None:
        problems.collect(lambda: load_factory(callback, "callback"))
