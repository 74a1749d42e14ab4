"""The method ``cooldown``: stage 1's optimizer continues as its rate falls to 0; then ``val`` chooses what to keep."""

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from dimred.averaging.choice import Candidate, Choice, choose
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.states import VAL_LOSSES, RunState
from dimred.config import CooldownConfig, OptimizerConfig, StageOneConfig, StageTwoConfig
from dimred.curves import CurveName
from dimred.errors import ConfigError
from dimred.evaluation.averages import SnapshotAverages, choose_average
from dimred.run_files.run_names import CONFIG, FULL_CHECKPOINT, STAGE_1_CHECKPOINTS
from dimred.run_files.stage_two_result import AVERAGE, START, StageTwoResult
from dimred.runs.run import Run
from dimred.runs.steps import build_optimizer, build_rates, join_step, warn_of_idle_patterns
from dimred.runs.task import Task
from dimred.stages.method import Method, NextCommands, Plan, State
from dimred.stages.parent import StageOneRun
from dimred.stages.point_files import PointFiles, parameters_of_point
from dimred.train_step.optimizer_state import state_parameters
from dimred.train_step.protocol import Step
from dimred.train_step.schedule import with_cooldown
from dimred.train_step.step import TrainStep
from dimred.vectors.parameters import from_arrays, preserved, to_arrays

_log = logging.getLogger(__name__)

_USED_UP = 1e-3  # fraction of the peak below which nothing is left to cool down


@dataclass(frozen=True)
class Cooldown:
    """A cooldown as it begins, the same on every rank.

    Attributes:
        factor: the cooldown begins at ``factor * rate``.
        schedule: how the rate falls to 0, a name of ``CURVES``.
        optimizer: the optimizer's configuration.
        rate: learning rate that stage 1 ended with.
        updates: updates that the optimizer has made; its bias correction and its rates continue from there. 0 if its
            state begins anew.
        taken_from: a phrase that says where optimizer and rate come from.
        steps_per_epoch: stage 1's, to notice batches of a different size; None if the configuration gives the rate,
            or the name of WEIGHTS does not say.
        parent: the run that WEIGHTS come from.
    """

    factor: float
    schedule: CurveName
    optimizer: OptimizerConfig
    rate: float
    updates: int
    taken_from: str
    steps_per_epoch: int | None
    parent: StageOneRun = field(compare=False, repr=False)

    def summary(self) -> dict[str, Any]:
        """Return everything but ``parent``, for ``result.json``."""
        return {
            "factor": self.factor,
            "schedule": self.schedule,
            "optimizer": self.optimizer.name,
            "rate": self.rate,
            "updates": self.updates,
            "taken_from": self.taken_from,
            "steps_per_epoch": self.steps_per_epoch,
            "optimizer_settings": self.optimizer.model_dump(mode="json"),
        }

    def build_optimizer(self, task: Task[StageTwoConfig]) -> nn.Optimizer:
        """Build the optimizer, with stage 1's state if that continues; its rates fall from ``factor * rate`` to 0.

        Warn if stage 1's epochs had a different length.
        """
        before = self.steps_per_epoch
        now = task.steps_per_epoch
        if task.ranks.is_rank_zero and before not in (None, now):
            _log.warning(
                f"stage 1 made {before} steps in an epoch, but stage 2 makes {now}, so stage 1's rate is "
                "for batches of another size; use stage 1's batch size, accumulation and devices, or set cooldown.rate"
            )
        constant = np.full(self.updates + 1, self.factor * self.rate)
        rates = with_cooldown(constant, self.updates, task.config.n_epochs * now, self.schedule)
        optimizer = build_optimizer(self.optimizer, task.network, rates.tolist())
        self._take_over(state_parameters(optimizer))
        return optimizer

    def take_over_parts(self, step: Step) -> None:
        """If the optimizer's state continues, set a step's parts, such as its EMA, to their state in WEIGHTS."""
        for part in step.parts:
            if self.parent.arrays.keys() >= {parameter.name for parameter in part.parameters}:
                self._take_over(part.parameters)

    def _take_over(self, parameters: list[Any]) -> None:
        if self.updates > 0:
            from_arrays(parameters, self.parent.arrays, self.parent.title)


@dataclass(eq=False)
class CooldownMethod(Method):
    """The hooks of a cooldown that keeps its last weights.

    Attributes:
        cooldown: the cooldown as it begins.
    """

    cooldown: Cooldown

    def describe(self, result: StageTwoResult) -> None:
        """Note which optimizer continues at which rate."""
        result.cooldown = self.cooldown.summary()


class ChoosingCooldown(CooldownMethod):
    """The hooks of a cooldown after which ``val`` chooses what to keep.

    The candidates are its last weights and the best average of stage 1's snapshots, or WEIGHTS if no average is better.

    Args:
        run, step, cooldown: as for ``CooldownMethod``.
        files: the checkpoints of the points.
    """

    def __init__(self, run: Run[StageTwoConfig], step: Step, cooldown: Cooldown, files: PointFiles) -> None:
        super().__init__(run, step, cooldown)
        self._files = files
        self._evaluator = run.evaluator
        self._choice = self._new_choice()

    def _new_choice(self) -> Choice:
        return Choice(passes_each=self._evaluator.passes_each, metric=self.run.figures.metrics[0])

    def restore(self, state: RunState) -> None:
        """Restore the measurements of the candidates."""
        choice = self._choice = self._new_choice()
        for key, losses in state.arrays.items():
            if not key.startswith(VAL_LOSSES):
                continue
            name = key.removeprefix(VAL_LOSSES)
            size, metric, file = state.values["candidates"][name]
            source = self._files.folder / file
            choice.candidates.append(Candidate(name, size, losses, metric, source=source))
            self._files.hold(source)
        choice.seconds = state.values["choosing_seconds"]
        choice.n_added = sum(candidate.name in (START, AVERAGE) for candidate in choice.candidates)

    def begin(self, result: StageTwoResult) -> None:
        """Add a candidate: the best of the network's weights and the averages of stage 1's snapshots."""
        parent = self.cooldown.parent
        evaluator = self._evaluator
        ranks = self.run.ranks
        choice = self._new_choice()
        series = ranks.run_on_rank_zero(lambda: parent.snapshots() if parent.has_snapshots else None)
        averages = SnapshotAverages(series, evaluator.layout, ranks)
        with preserved(list(evaluator.network.get_parameters())):
            last = evaluator.layout.flatten(to_arrays(evaluator.network.trainable_params()))
            best, weights = choose_average(averages, evaluator.measure_val_of, last, choice)
            choice.log_choice("average")
            result.choices["average"] = choice.result()
            point = START if best.name == "last" else AVERAGE
            if point == AVERAGE:
                evaluator.put(weights)
                self._files.save(AVERAGE, parameters_of_point(self.step))
                result.put(AVERAGE, self.run.figures.of_average())
        self._choice.add(point, best, self._files.path(point))

    def measure(self, point: str | int) -> None:
        """Measure the last weights, and add them to the candidates."""
        if point == self.run.config.n_epochs:
            self._files.hold(self._files.path(point))
            self._choice.measure(str(point), 1.0, self._evaluator.measure_val, self._files.path(point))

    def state(self) -> State:
        """Return each candidate's size, metric and file, and its losses if all are finite."""
        measured = [candidate for candidate in self._choice.candidates if np.isfinite(candidate.losses).all()]
        candidates = {
            candidate.name: (candidate.effective_size, candidate.metric, candidate.source.name)
            for candidate in self._choice.candidates
            if isinstance(candidate.source, Path)
        }
        return State(
            {VAL_LOSSES + candidate.name: candidate.losses for candidate in measured},
            {"candidates": candidates, "choosing_seconds": self._choice.seconds},
        )

    def finish(self, result: StageTwoResult) -> None:
        """Choose among the candidates, and put the choice into the network on every rank."""
        file = choose(self._choice.candidates).source
        parameters = list(self._evaluator.network.get_parameters())
        assert isinstance(file, Path)
        arrays = self.run.ranks.run_on_rank_zero(lambda: read_checkpoint(file))
        if arrays is not None:
            from_arrays(parameters, arrays, str(file))
        self.run.ranks.broadcast(parameters)
        self._choice.log_choice("kept")
        result.choices["kept"] = self._choice.result()


@dataclass(eq=False)
class CooldownPlan(Plan[CooldownConfig]):
    """The plan of a cooldown: which optimizer continues from WEIGHTS, at which rate."""

    cooldown: Cooldown | None = None  # None until ``check`` sets it

    def next_commands(self, config_1: StageOneConfig, weights: Path, run_folder: Path) -> NextCommands | None:
        """Return no further commands or arguments; None if the schedule has brought the rate to 0."""
        if config_1.schedule.falls_to_zero and config_1.epochs >= config_1.schedule.total_epochs:
            return None
        return super().next_commands(config_1, weights, run_folder)

    def check_parent(self, parent: StageOneRun) -> None:
        """Check that there is a rate to cool down."""
        if self.section.rate is None:
            last_rate(parent)

    def check(self, task: Task[StageTwoConfig], parent: StageOneRun, pca_mat: Path | None) -> None:
        """Decide which optimizer continues at which rate, and refuse PCA_MAT."""
        self.cooldown = task.problems.collect(lambda: plan_cooldown(self.section, task.network, parent))
        task.problems.collect(lambda: self.check_no_matrix(pca_mat))

    def build(
        self, run: Run[StageTwoConfig], task: Task[StageTwoConfig], parent: StageOneRun, files: PointFiles
    ) -> Method:
        """Build the step and the cooldown's hooks, with or without a choice."""
        assert self.cooldown is not None
        step = build_cooldown_step(task, self.cooldown)
        if self.section.keep_best:
            return ChoosingCooldown(run, step, self.cooldown, files)
        return CooldownMethod(run, step, self.cooldown)


def plan_cooldown(config: CooldownConfig, network: nn.Cell, parent: StageOneRun) -> Cooldown:
    """Decide which optimizer continues at which rate; the section's ``optimizer`` and ``rate`` take precedence.

    Raises:
        ConfigError: WEIGHTS lack the optimizer's state, or are not in a stage 1 run that has optimizer and rate, and
            the configuration does not replace these; the optimizer is schedule_free; the file name of WEIGHTS does not
            give their epoch; or stage 1's schedule had already brought the rate down to almost nothing.
    """
    replacement = config.optimizer
    if replacement is None and parent.n_updates is None:
        raise ConfigError(
            f"{parent.title} has the weights but no optimizer state; give a full checkpoint of stage 1, "
            f"{FULL_CHECKPOINT}, or set cooldown.optimizer.name and cooldown.rate to begin without that state"
        )
    if replacement is not None and replacement.name == "schedule_free":
        raise ConfigError("cooldown.optimizer.name is schedule_free, which has no rate to bring to 0; name another one")
    if replacement is not None and config.rate is not None:
        optimizer = replacement
        rate = config.rate
        source = "cooldown.optimizer and cooldown.rate of the configuration"
    else:
        optimizer = replacement or _known_config(parent).optimizer
        source = str(parent.path.parent.parent / CONFIG)
        if optimizer.name == "schedule_free":
            raise ConfigError(
                f"{parent.title} was trained with schedule_free, which has no rate to bring to 0. To cool down the "
                "trained network, *-final.ckpt beside it, name that file as WEIGHTS, and set "
                "cooldown.optimizer.name=momentum and cooldown.rate"
            )
        rate = config.rate or last_rate(parent)
    steps_per_epoch = parent.steps_per_epoch if config.rate is None else None
    cooldown = Cooldown(config.factor, config.schedule, optimizer, rate, 0, source, steps_per_epoch, parent)
    has_state = True
    if replacement is not None:
        state = state_parameters(build_optimizer(replacement, network, [0.0]))
        has_state = parent.arrays.keys() >= {parameter.name for parameter in state}
    if parent.n_updates is None or not has_state:
        return replace(cooldown, taken_from=f"{source}; its state begins anew")
    return replace(cooldown, updates=parent.n_updates)


def _known_config(parent: StageOneRun) -> StageOneConfig:
    """Return stage 1's configuration; ConfigError if it is not known."""
    if parent.config is None:
        raise ConfigError(
            f"{parent.title} is not in the {STAGE_1_CHECKPOINTS}/ of a stage 1 run, so neither its optimizer nor its "
            "rate is known; to cool it down, set cooldown.optimizer.name and cooldown.rate"
        )
    return parent.config


def last_rate(parent: StageOneRun) -> float:
    """Return the rate that the next update of stage 1 would have had.

    Raises:
        ConfigError: the run or the epoch is not known, or the rate has already fallen to almost nothing.
    """
    schedule = _known_config(parent).schedule
    epoch = parent.epoch
    per_epoch = parent.steps_per_epoch
    if epoch is None or per_epoch is None:
        raise ConfigError(
            f"WEIGHTS is {str(parent.path)!r}, not NAME-EPOCH_STEPS.ckpt, so stage 1's rate there is not known; set "
            "cooldown.rate"
        )
    rates = build_rates(schedule, per_epoch, epoch + 1)
    # The updates are fewer than the steps if some steps were dropped.
    n_updates = epoch * per_epoch if parent.n_updates is None else parent.n_updates
    has_ended = n_updates >= schedule.total_epochs * per_epoch
    rate = 0.0 if schedule.falls_to_zero and has_ended else float(rates[min(n_updates, len(rates) - 1)])
    if schedule.falls_to_zero and rate < _USED_UP * schedule.peak:
        raise ConfigError(
            f"Stage 1's learning rate was {rate:.2g} by epoch {epoch}, so nothing is left to cool down; name an "
            "earlier full checkpoint, or set cooldown.rate"
        )
    return rate


def build_cooldown_step(task: Task[StageTwoConfig], cooldown: Cooldown) -> TrainStep:
    """Build a cooldown's step: stage 1's step with a rate that falls to 0.

    If WEIGHTS hold the optimizer's state, the optimizer continues from it, and so do the loss scale and the EMA if
    WEIGHTS hold their states. Everything else starts afresh. The network has stage 1's weights already.
    """
    _log.info(
        f"cooldown: {cooldown.optimizer.name} from {cooldown.factor:.3g} times stage 1's rate {cooldown.rate:.4g}, "
        f"{cooldown.schedule} to 0 ({cooldown.taken_from})"
    )
    warn_of_idle_patterns(cooldown.optimizer, task.network)
    step = join_step(task.config, task.network, cooldown.build_optimizer(task), task.ranks)
    cooldown.take_over_parts(step)
    return step
