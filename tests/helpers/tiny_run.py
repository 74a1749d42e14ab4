"""Run both stages on the tiny task, inside this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import mindspore as ms
import pytest

from dimred.checkpoints.states import read_full_checkpoint
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.runs.begun import Begun
from dimred.runs.run import Run, open_run
from dimred.runs.steps import build_train_step
from dimred.runs.task import build_task
from dimred.stages.method import plan_of
from dimred.stages.parent import StageOneRun
from dimred.stages.stage_1 import StageOne
from dimred.stages.stage_2 import build_stage_2
from tests.helpers.results import differences, results

RunStage = Callable[[Path, bool], object]  # the folder, and whether to resume


def stage_1_run(config: StageOneConfig, begin: Path | None = None) -> RunStage:
    """Make a function that runs stage 1 with the same cells, compiled once, and the same values at the beginning.

    Args:
        config: configuration of the run.
        begin: a full checkpoint to begin with.
    """
    ms.set_seed(config.seed)
    task = build_task(config, Path())
    step = build_train_step(config, task.network, task.steps_per_epoch)
    first = step.state()

    def run_stage(out: Path, resume: bool) -> None:
        step.restore(first, "the beginning")
        with open_run(out, task, Begun.open(out, StageOneConfig) if resume else None) as run:
            StageOne(run, step).go(None if begin is None else read_full_checkpoint(begin, "--from"))

    return run_stage


def stage_2_run(config: StageTwoConfig, weights: Path, matrix: Path | None = None) -> RunStage:
    """Make a function that runs stage 2; it builds a new step each time.

    Args:
        config: configuration of the run; ``epochs`` is a number.
        weights: the full checkpoint to begin with, in its run.
        matrix: the basis of a search; None without one.
    """
    task, parent = build_task(config, Path()), StageOneRun.open(weights)
    plan = plan_of(config)
    plan.check(task, parent, matrix)
    task.problems.check()

    def run_stage(out: Path, resume: bool) -> None:
        with open_run(out, task, Begun.open(out, StageTwoConfig) if resume else None) as run:
            build_stage_2(run, task, parent, plan).go()

    return run_stage


@contextmanager
def dying(kind: type, method: str) -> Iterator[None]:
    """Let the run in the block die where it calls this method of the class ``kind``; the block must end by that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, method, lambda *_, **__: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            yield


def differences_if_killed(run: RunStage, folder: Path) -> list[str]:
    """Run a stage whole in ``folder/one``, and killed after its first epoch and resumed; return what differs."""
    run(folder / "one", False)
    with dying(Run, "log_epoch"):
        run(folder / "killed", False)
    run(folder / "killed", True)
    return differences(results(folder / "killed"), results(folder / "one"))
