"""The two base classes for a stage 2 method: the plan, made first, and the hooks that the stage calls."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from mindspore import nn

from dimred.checkpoints.states import RunState
from dimred.config import MethodConfig, StageOneConfig, StageTwoConfig
from dimred.errors import ConfigError
from dimred.factories import load_factory
from dimred.run_files.stage_two_result import StageTwoResult
from dimred.runs.begun import Pin
from dimred.runs.loop import Progress
from dimred.runs.run import Run
from dimred.runs.task import Task
from dimred.stages.disk import FLOAT, STATES, sizes
from dimred.stages.parent import StageOneRun
from dimred.stages.point_files import PointFiles
from dimred.train_step.protocol import Result, Step

Section = TypeVar("Section", bound=MethodConfig)


class NextCommands(NamedTuple):
    """The commands that follow stage 1, if stage 2 uses this method.

    Attributes:
        before: the commands to run before stage 2, as argument lists.
        arguments: the arguments after WEIGHTS in stage 2's command.
    """

    before: list[list[str]]
    arguments: list[str]


class State(NamedTuple):
    """What a method needs to resume, in addition to its step's state.

    Attributes:
        arrays: arrays by name.
        values: JSON values by name.
    """

    arrays: Mapping[str, np.ndarray]
    values: Mapping[str, Any]


@dataclass(eq=False)
class Method:
    """The hooks of a stage 2, in the order in which ``StageTwo`` calls them, on all ranks.

    By default they do what ordinary training needs: they record each epoch, and keep the network at the end.

    Attributes:
        run: the run.
        step: the step that the stage takes on each batch.
    """

    run: Run[StageTwoConfig]
    step: Step

    def pins(self) -> dict[str, Pin]:
        """Return what the run depends on outside its folder, in addition to DATA, WEIGHTS and the devices."""
        return {}

    def describe(self, result: StageTwoResult) -> None:
        """Note in the result what the method begins with; a resumed run keeps what it noted first."""

    def restore(self, state: RunState) -> None:
        """Restore what ``state`` returned, in a run that is resumed."""

    def begin(self, result: StageTwoResult) -> None:
        """Do what comes before the first step; called once, before the start is measured.

        The network holds WEIGHTS, and must hold them again when this returns.
        """

    def measure(self, point: str | int) -> None:
        """Measure more at a point, while BatchNorm has the statistics that would be kept with the network.

        Args:
            point: ``start``, or the number of an epoch.
        """

    def state(self) -> State:
        """Return what a resume needs, in addition to the step's state."""
        return State({}, {})

    def reads_after(self, done: int) -> bool:
        """Return whether ``after_step`` must run after step ``done`` of an epoch before the next one starts."""
        return False

    def after_step(self, made: Result, progress: Progress, result: StageTwoResult) -> str | None:
        """Note a step that was made, and return a status for the progress bar, or None to leave it.

        Args:
            made: what the step returned.
            progress: the position after the step.
            result: the measurements so far.
        """
        self.run.note(made)
        return None

    def after_epoch(self, progress: Progress, evaluation_seconds: float) -> None:
        """Record an epoch that was measured.

        Args:
            progress: the position after its last step.
            evaluation_seconds: wall seconds that measuring and saving it took.
        """
        self.run.record_epoch(evaluation_seconds)

    def finish(self, result: StageTwoResult) -> None:
        """Give the network the weights that stage 2 keeps, and complete the result."""


@dataclass(eq=False)
class Plan(Generic[Section]):
    """What a stage 2 method decides and checks before anything is built; ``build`` makes the method.

    Attributes:
        config: stage 2's configuration.
        section: the method's section of it.
    """

    config: StageTwoConfig
    section: Section
    vectors_in_state: ClassVar[int] = 2
    """How many vectors, each as long as the weights, a saved state holds beside the network; AdamW keeps two."""

    def next_commands(self, config_1: StageOneConfig, weights: Path, run_folder: Path) -> NextCommands | None:
        """Return the commands that follow stage 1; None if it has left nothing for the method to continue from.

        Args:
            config_1: stage 1's configuration.
            weights: its last full checkpoint.
            run_folder: its folder.
        """
        return NextCommands([], [])

    def check_parent(self, parent: StageOneRun) -> None:
        """Refuse a stage 1 that lacks something the method needs besides WEIGHTS; by default it needs nothing.

        Raises:
            ConfigError, SeriesError: stage 1 lacks something.
        """

    def disk(self, network: nn.Cell, pca_mat: Path | None) -> int:
        """Return about how many bytes stage 2 takes on disk in all: checkpoints and states."""
        weights, everything = sizes(network)
        state = 2 * everything + self.vectors_in_state * weights
        keep = self.config.checkpoints.keep
        n_epochs = self.config.n_epochs if keep is None else min(keep + 1, self.config.n_epochs)
        return FLOAT * ((n_epochs + 4) * 2 * everything + STATES * state)

    def check(self, task: Task[StageTwoConfig], parent: StageOneRun, pca_mat: Path | None) -> None:
        """Add the problems with the inputs to ``task.problems``, and note what ``build`` needs.

        Args:
            task: the task.
            parent: the run that WEIGHTS come from.
            pca_mat: PCA_MAT, or the basis of the run that is resumed; None for neither.
        """
        task.problems.collect(lambda: task.ranks.run_on_rank_zero(lambda: self.check_parent(parent)))
        task.problems.collect(lambda: self.check_no_matrix(pca_mat))

    def check_no_matrix(self, pca_mat: Path | None) -> None:
        """Raise ConfigError if PCA_MAT is given."""
        if pca_mat is not None:
            raise ConfigError(
                f"PCA_MAT is {str(pca_mat)!r}, but method is {self.config.method}, which has no use for it; leave "
                "PCA_MAT out, or search in it with --set method=search"
            )

    def build(
        self, run: Run[StageTwoConfig], task: Task[StageTwoConfig], parent: StageOneRun, files: PointFiles
    ) -> Method:
        """Build the method after ``check``; the network has WEIGHTS already.

        Args:
            run: the run; its task may be shortened.
            task: the whole task; its steps determine the rates.
            parent: the run that WEIGHTS come from.
            files: the checkpoints of the points.
        """
        raise NotImplementedError


def plan_of(config: StageTwoConfig) -> Plan[Any]:
    """Make the plan for the method that a configuration names.

    Raises:
        ConfigError: a user's own plan can't be imported.
    """
    section = config.method_config
    plan: Plan[Any] = load_factory(section.plan, f"the plan of method {config.method}")(config, section)
    return plan
