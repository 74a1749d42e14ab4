"""Stage 2: continue a run of stage 1 by a search or a cooldown, and keep its end, or the choice on ``val``."""

import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mindspore import Parameter

from dimred.checkpoints.series import CheckpointSeries
from dimred.checkpoints.states import RunState
from dimred.config import StageTwoConfig
from dimred.data.batches import STAGE_2_EPOCHS_FROM
from dimred.errors import NothingAcceptedError
from dimred.io.atomic import retry
from dimred.io.metric import AS_TRAINED
from dimred.io.metrics_file import each_record, loss_text
from dimred.io.run_names import BASIS, METRICS, RESULT, STAGE_2_CHECKPOINTS
from dimred.io.stage_two_result import FINAL, START, MetricResult, StageTwoResult
from dimred.launch.environment import log_commands
from dimred.runs.begun import Pin
from dimred.runs.loop import Observer, Progress
from dimred.runs.run import Run
from dimred.runs.task import Task
from dimred.stages.parent import StageOneRun
from dimred.stages.point_files import PointFiles
from dimred.subspace.basis import SubspaceBasis
from dimred.train_step.optimizer_state import state_parameters
from dimred.train_step.protocol import Result, Step, parameters_to_save
from dimred.vectors.parameters import from_arrays

if TYPE_CHECKING:
    from dimred.stages.cooldown import Cooldown

_log = logging.getLogger(__name__)


class StageTwo(Observer):
    """Stage 2, from its start to the network that is kept; a cooldown also chooses among candidates.

    A search keeps its last network. After a cooldown, ``val`` chooses between the last epoch and the best average of
    stage 1's snapshots, or WEIGHTS themselves if no average is better than these.

    Args:
        run: the run.
        step: the step. Each step of a search is recorded; other steps are recorded by epochs.
        parent: the run of stage 1 that is continued.
        cooldown: the cooldown as it begins; None for a search.
        basis: the basis that the step searches in, on every rank; None for a cooldown.
    """

    def __init__(
        self,
        run: Run[StageTwoConfig],
        step: Step,
        parent: StageOneRun,
        cooldown: "Cooldown | None" = None,
        basis: SubspaceBasis | None = None,
    ) -> None:
        self.run, self.step, self.parent, self.basis = run, step, parent, basis
        self._settings, self._task, self._ranks, self._progress = run.settings, run.task, run.ranks, run.progress
        self._per_epoch, self._n_epochs = run.task.steps_per_epoch, run.settings.n_epochs
        self._progress.epoch = 0
        self._step_records: list[dict[str, Any]] = []  # of a search's steps in this epoch
        prefix = self._settings.model.file_prefix
        self.files = PointFiles(run.folder / STAGE_2_CHECKPOINTS, prefix, self._per_epoch, self._ranks)
        self.candidates = None
        if self._settings.uses_val:
            from dimred.stages.candidates import Candidates

            self.candidates = Candidates(run, self.files)
        run.pins["WEIGHTS"] = Pin(parent.digest, str(parent.path.resolve()))
        if basis is not None:
            outside = None if basis.path == run.folder / BASIS else basis.path
            run.pins["PCA_MAT"] = Pin(str(basis.digest), str(outside.resolve()) if outside else None)
        sources = {"data": run.task.data, "weights": parent.path, "basis": basis and basis.path}
        self.result = StageTwoResult(
            epochs=self._n_epochs,
            sources={name: str(path.resolve()) if path else None for name, path in sources.items()},
            digests={name: pin.digest for name, pin in run.pins.items()},
            metrics=[MetricResult(metric) for metric in run.figures.metrics],
        )  # fmt: skip
        if cooldown is not None:
            self.result.cooldown = cooldown.summary()

    def go(self) -> None:
        """Begin or resume, train the remaining epochs, put the network to keep in place, and write the result.

        Raises:
            ConfigError: ``epochs`` is below the epoch that the run has reached, or an input of the run has changed.
            RunError, CheckpointError: the state can't be restored, see ``Run.restore``.
            FaultError: no candidate has a finite loss on ``val``.
        """
        run, progress = self.run, self._progress
        state = run.restore(self.step, self._n_epochs)
        if state is not None:
            self._restore(state)
        run.write_configuration()
        # Only a run that has ended has a result, and this one may go on for more epochs.
        self._ranks.run_on_rank_zero(lambda: (run.folder / RESULT).unlink(missing_ok=True))
        with run.open_records():
            self._ranks.run_on_rank_zero(lambda: run.states.forget_after(run.n_steps))
            if state is None:
                self.save(progress)
            run.write_pins()
            if progress.epoch == 0:
                if self.candidates is not None:
                    self.candidates.add_best_before(self.parent, self.result, self._parameters())
                self._record_point(START)
                _log.info(f"stage 2 starts from WEIGHTS: {run.figures.metrics[0].name} {run.figures.text(2)}")
                progress.next_epoch()
                self.save(progress)
            self._train()
        self._keep()

    def _restore(self, state: RunState) -> None:
        """Restore the measurements and choices of stage 2 from a state."""
        before = StageTwoResult.from_json(state.values["result"])
        self.result = replace(before, epochs=self.result.epochs)
        if self.candidates is not None:
            self.candidates.restore(state.arrays, state.values)

    def _parameters(self) -> list[Parameter]:
        """Return the network's parameters, and those of the step's parts: the EMA and the loss scale."""
        known = {id(parameter) for parameter in state_parameters(self.step.optimizer)}
        return [parameter for parameter in parameters_to_save(self.step) if id(parameter) not in known]

    def _train(self) -> None:
        """Train the remaining epochs; end early if the search gives up."""
        run, progress = self.run, self._progress
        if self.step.reads_each_step:
            records = each_record(run.folder / METRICS)
            self._step_records = [record for record in records if record["epoch"] == progress.epoch]
        try:
            run.loop("stage 2", self.step, self._n_epochs, STAGE_2_EPOCHS_FROM).run(progress, self)
        except NothingAcceptedError as stop:
            self.result.stopped, self.result.epochs = str(stop), run.n_steps / self._per_epoch
            _log.info(f"the search stops in epoch {progress.epoch}: {stop}")
            if progress.done:  # the steps since the last epoch count as an epoch
                run.arrays_of(self.step)
                self.after_epoch(progress)

    def after_step(self, result: Result, progress: Progress) -> str | None:
        """Note the step: check its loss for divergence; or, in a search, record it and return a status."""
        run, main = self.run, self.result.main
        if not self.step.reads_each_step:
            run.note(result)
            return None
        run.note(result, checks_divergence=False)
        self._step_records.append(run.records.write(epoch=progress.epoch, step=run.n_steps, **result.record()))
        value = list(main.by_point.values())[-1][AS_TRAINED]
        loss = loss_text(self._step_records[-1]["loss_after"])
        return f"loss {loss}, {main.metric.name} {main.metric.text(value, 1)}"

    def save(self, progress: Progress) -> None:
        """Save the state to resume from."""
        arrays, values = self.run.arrays_of(self.step), dict[str, Any]()
        if self.candidates is not None:
            arrays, values = arrays | self.candidates.state_arrays(), self.candidates.state_values()
        self.run.save(arrays, result=self.result.as_json(), **values)

    def after_epoch(self, progress: Progress) -> str:
        """Save and measure the point that was reached, record the epoch, and return a status for the progress bar."""
        run, started = self.run, time.perf_counter()
        self._record_point(progress.epoch)
        if self.step.reads_each_step:
            from dimred.search_step.result import search_line

            _log.info(search_line(self._step_records))
            self._step_records = []
        else:
            run.records.write(
                epoch=progress.epoch, step=run.n_steps, loss=run.last["loss"], metrics=run.figures.values,
                **run.last["parts"],
                seconds=progress.seconds, evaluation_seconds=time.perf_counter() - started,
            )  # fmt: skip
        self.result.training_seconds += progress.seconds
        return run.log_epoch(self.step, self._n_epochs)

    def _record_point(self, point: str | int) -> None:
        """Save a point and measure it; measure the last epoch of a cooldown also on ``val``."""
        run = self.run
        run.average_statistics(self.step)
        self.files.save(point, self._parameters())
        choose = None
        if self.candidates is not None and point == self._n_epochs:
            choose = partial(self.candidates.measure, self._n_epochs)
        run.measure(self.step, choose)
        self.result.put(point, run.figures.values)

    def _keep(self) -> None:
        """Choose the network to keep, measure and save it, and write ``result.json``."""
        run, result = self.run, self.result
        result.steps = run.n_steps
        if self.basis is not None:
            from dimred.search_step.result import totals

            result.totals = totals(each_record(run.folder / METRICS))
            result.basis = self.basis.in_short(self._settings.search.n_components)
        if self.candidates is not None:
            result.choices["kept"] = self.candidates.put_chosen()
        run.figures.measure_final()
        result.put(FINAL, run.figures.values)
        result.warning = self._settings.eval_split_warning()
        self.files.save(FINAL, list(self._task.network.get_parameters()))
        if self._ranks.is_rank_zero:
            retry(lambda: result.write(run.folder / RESULT))
        run.figures.log_end(self.files.path(FINAL), run.figures.reestimates, run.is_kept)
        if run.is_kept:
            log_commands(["report", str(run.folder.absolute())])


def build_stage_2(
    run: Run[StageTwoConfig],
    task: Task[StageTwoConfig],
    parent: StageOneRun,
    cooldown: "Cooldown | None",
    basis: SubspaceBasis | CheckpointSeries | None = None,
) -> StageTwo:
    """Put WEIGHTS into the network, build the step, and return the stage.

    Args:
        run: the run, whose task may be shortened.
        task: the whole task, whose steps determine the rates.
        parent: the run that WEIGHTS come from.
        cooldown, basis: the result of ``check_stage_2``.

    Raises:
        CheckpointError: the arrays of WEIGHTS do not fit the network.
    """
    from_arrays(task.network.get_parameters(), parent.arrays, parent.title)
    if cooldown is not None:
        from dimred.stages.cooldown import build_cooldown_step

        return StageTwo(run, build_cooldown_step(task, cooldown), parent, cooldown)
    from dimred.stages.search_basis import fit_and_share
    from dimred.stages.subspace_train_step import build_search_step

    search_basis = fit_and_share(basis, task.settings.search, task.network, run.folder, task.ranks)
    return StageTwo(run, build_search_step(task, search_basis), parent, basis=search_basis)
