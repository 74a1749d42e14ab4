"""Put stage 2 together: the weights to begin with, the step, and the stage."""

from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageTwoConfig
from dimred.errors import ConfigError
from dimred.runs.run import Run
from dimred.runs.task import Task
from dimred.stages.cooldown import build_cooldown_step, plan_cooldown
from dimred.stages.parent import StageOneRun
from dimred.stages.stage_2 import StageTwo
from dimred.subspace.basis import SubspaceBasis


def build_stage_2(
    run: Run[StageTwoConfig],
    task: Task[StageTwoConfig],
    parent: StageOneRun,
    basis: SubspaceBasis | CheckpointSeries | None = None,
) -> StageTwo:
    """Put WEIGHTS into the network, build the step, and return the stage.

    Args:
        run: the run, whose task may be shortened.
        task: the whole task, whose steps determine the rates.
        parent: the run that WEIGHTS come from.
        basis: what ``check_stage_2`` returned: the basis of a search, or the snapshots to fit one on, on rank 0.

    Raises:
        ConfigError: cooldown and search are both null, or the cooldown can't be planned, see ``plan_cooldown``.
        CheckpointError: the arrays of WEIGHTS do not fit the network.
    """
    settings, network, ranks = task.settings, task.network, task.ranks
    parent.put_weights(network, ranks)
    cooldown = None if settings.cooldown is None else plan_cooldown(settings.cooldown, network, parent)
    if settings.search is not None:
        from dimred.stages.search import fit_and_share
        from dimred.stages.subspace_train_step import build_search_step

        search_basis = fit_and_share(basis, settings.search, network, run.folder, ranks)
        step = build_search_step(
            settings, settings.search, cooldown, parent, network, search_basis, task.steps_per_epoch, ranks
        )
        return StageTwo(run, step, parent, cooldown, search_basis)
    if cooldown is None:
        raise ConfigError("cooldown and search are both null, so stage 2 would do nothing; set one of them")
    step = build_cooldown_step(settings, cooldown, parent, network, task.steps_per_epoch, ranks)
    return StageTwo(run, step, parent, cooldown)
