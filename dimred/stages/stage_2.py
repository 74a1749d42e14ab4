"""Stage 2: continue a stage 1 run by a method, and keep the network that the method chooses."""

import logging
import time
from dataclasses import replace
from functools import partial

from dimred.checkpoints.states import RunState
from dimred.config import StageTwoConfig
from dimred.data.batches import STAGE_2_EPOCHS_FROM
from dimred.errors import NothingToGainError
from dimred.io.atomic import retry
from dimred.launch.environment import log_commands
from dimred.run_files.run_names import RESULT, STAGE_2_CHECKPOINTS
from dimred.run_files.stage_two_result import FINAL, START, MetricResult, StageTwoResult
from dimred.runs.begun import Pin
from dimred.runs.loop import Observer, Progress
from dimred.runs.run import Run
from dimred.runs.task import Task
from dimred.stages.method import Method, Plan
from dimred.stages.parent import StageOneRun
from dimred.stages.point_files import PointFiles, parameters_of_point
from dimred.train_step.protocol import Result
from dimred.vectors.parameters import from_arrays

_log = logging.getLogger(__name__)


class StageTwo(Observer):
    """Stage 2, from its start to the network that it keeps; it measures and saves a point after each epoch.

    Args:
        run: the run.
        method: the step, and what happens between steps.
        parent: the stage 1 run to continue.
        files: the checkpoints of the points.
    """

    def __init__(self, run: Run[StageTwoConfig], method: Method, parent: StageOneRun, files: PointFiles) -> None:
        self.run = run
        self.method = method
        self.step = method.step
        self.files = files
        run.progress.epoch = 0
        run.pins["WEIGHTS"] = Pin(parent.digest, str(parent.path.resolve()))
        run.pins |= method.pins()
        self.result = StageTwoResult(
            epochs=run.config.n_epochs,
            sources={"data": str(run.task.data.resolve()), "weights": str(parent.path.resolve()), "basis": None},
            digests={name: pin.digest for name, pin in run.pins.items()},
            metrics=[MetricResult(metric) for metric in run.figures.metrics],
        )
        method.describe(self.result)

    def go(self) -> None:
        """Begin or resume, train the remaining epochs, choose the weights to keep, and write the result.

        Raises:
            ConfigError: ``epochs`` is below the epoch that the run has reached, or an input has changed.
            RunError, CheckpointError: the state can't be restored; see ``Run.restore``.
            FaultError: no candidate has a finite loss on ``val``.
        """
        run = self.run
        progress = self.run.progress
        ranks = self.run.ranks
        state = run.restore(self.step)
        if state is not None:
            self._restore(state)
        run.write_configuration()
        # Only a run that has ended has a result, and this one may continue for more epochs.
        ranks.run_on_rank_zero(lambda: (run.folder / RESULT).unlink(missing_ok=True))
        with run.open_records():
            ranks.run_on_rank_zero(lambda: run.states.forget_after(run.n_steps))
            if state is None:
                self.save(progress)
            run.write_pins()
            if progress.epoch == 0:
                self.method.begin(self.result)
                self._record_point(START)
                _log.info(f"stage 2 starts from WEIGHTS: {run.figures.metrics[0].name} {run.figures.text(2)}")
                progress.next_epoch()
                self.save(progress)
            self._train()
        self._keep()

    def _restore(self, state: RunState) -> None:
        """Restore stage 2's measurements from a state, and what the method needs."""
        before = StageTwoResult.from_json(state.values["result"])
        self.result = replace(before, epochs=self.result.epochs)
        self.method.restore(state)

    def _train(self) -> None:
        """Train the remaining epochs; end early if the step says that there is nothing more to gain."""
        loop = self.run.loop("stage 2", self.step, STAGE_2_EPOCHS_FROM)
        try:
            loop.run(self.run.progress, self)
        except NothingToGainError as stop:
            self._end_early(str(stop))

    def _end_early(self, reason: str) -> None:
        run = self.run
        progress = self.run.progress
        self.result.stopped = reason
        self.result.epochs = run.n_steps / run.task.steps_per_epoch
        _log.info(f"the {run.config.method_name} stops in epoch {progress.epoch}: {reason}")
        if progress.done:  # the steps since the last epoch count as an epoch
            run.arrays_of(self.step)  # averages the statistics over the ranks, and notes the last loss
            self.after_epoch(progress)

    def reads_after(self, done: int) -> bool:
        """Return whether the method reads step ``done`` before the next one starts."""
        return self.method.reads_after(done)

    def after_step(self, result: Result, progress: Progress) -> str | None:
        """Let the method note the step; return its status for the progress bar."""
        return self.method.after_step(result, progress, self.result)

    def save(self, progress: Progress) -> None:
        """Save the state to resume from."""
        arrays = self.run.arrays_of(self.step)
        of_method = self.method.state()
        self.run.save({**arrays, **of_method.arrays}, result=self.result.as_json(), **of_method.values)

    def after_epoch(self, progress: Progress) -> str:
        """Save and measure the point reached, record the epoch, and return a status for the progress bar."""
        started = time.perf_counter()
        self._record_point(progress.epoch)
        self.method.after_epoch(progress, time.perf_counter() - started)
        self.result.training_seconds += progress.seconds
        return self.run.log_epoch(self.step)

    def _record_point(self, point: str | int) -> None:
        """Save a point and measure it, after ``Run.arrays_of`` has averaged the last step's statistics."""
        run = self.run
        self.files.save(point, parameters_of_point(self.step))
        run.measure(self.step, partial(self.method.measure, point))
        self.result.put(point, run.figures.values)

    def _keep(self) -> None:
        """Let the method choose the weights to keep, measure and save the network, and write ``result.json``."""
        run = self.run
        result = self.result
        result.steps = run.n_steps
        self.method.finish(result)
        run.figures.measure_final()
        result.put(FINAL, run.figures.values)
        result.warning = run.config.eval_split_warning()
        self.files.save(FINAL, list(run.task.network.get_parameters()))
        if run.ranks.is_rank_zero:
            retry(lambda: result.write(run.folder / RESULT))
        run.figures.log_end(self.files.path(FINAL), run.figures.reestimates, run.is_kept)
        if run.is_kept and run.ranks.is_rank_zero:  # only rank 0 has the files
            log_commands(["report", str(run.folder.absolute())])


def build_stage_2(run: Run[StageTwoConfig], task: Task[StageTwoConfig], parent: StageOneRun, plan: Plan) -> StageTwo:
    """Put WEIGHTS into the network, build the method, and return the stage.

    Args:
        run: the run; its task may be shortened.
        task: the whole task; its steps determine the rates.
        parent: the run that WEIGHTS come from.
        plan: the result of ``check_stage_2``.

    Raises:
        CheckpointError: the arrays in WEIGHTS do not fit the network.
    """
    from_arrays(task.network.get_parameters(), parent.arrays, parent.title)
    prefix = run.config.model.file_prefix
    folder = run.folder / STAGE_2_CHECKPOINTS
    keep = run.config.checkpoints.keep
    files = PointFiles(folder, prefix, run.task.steps_per_epoch, keep, run.ranks)
    return StageTwo(run, plan.build(run, task, parent, files), parent, files)
