"""A stage's run in its folder: lock, states, records, measurements and log lines. Nothing derives from it."""

import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import numpy as np

from dimred.checkpoints.states import RunState, RunStates, check_finite, read_state
from dimred.config import StageOneConfig, config_text
from dimred.errors import ConfigError, DataError
from dimred.io.atomic import atomic_write, retry
from dimred.io.file_format import CONFIGURATION
from dimred.launch.channel import tell_position
from dimred.launch.signals import StopSignals
from dimred.run_files.metrics_file import each_record, loss_text
from dimred.run_files.run_names import CONFIG, METRICS, MINDSPORE_LOG, PROFILE, TENSORBOARD
from dimred.runs.begun import Begun, Pin, pins_of_data, write_pins
from dimred.runs.faults import DivergenceDetector, translate_errors
from dimred.runs.figures import RunFigures
from dimred.runs.listeners import TensorBoard, make_callback
from dimred.runs.loop import EpochLoop, Progress
from dimred.runs.profiler import StepProfiler
from dimred.runs.records import MetricsLog, Record, cut_metrics
from dimred.runs.run_folder import run_folder, write_versions
from dimred.runs.task import Config, Task
from dimred.train_step.optimizer_state import last_rate
from dimred.train_step.protocol import Result, Step
from dimred.train_step.statistics import moving_statistics
from dimred.vectors.parameters import to_arrays
from dimred.workarounds.native_messages import redirect_native_stderr

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Run(Generic[Config]):
    """A stage's run in its folder, locked by the caller; see ``open_run``.

    Attributes:
        task: the stage's task.
        folder: the run's folder.
        signals: the stop signals, entered by the caller.
        after_launch: called once a step is handed to the device.
        begun: the run that is resumed, as it began; None for a new one.
        is_kept: whether the run's files are for use; otherwise no next command is named.
        progress: the run's position.
        pins: everything that the run depends on outside its folder, on rank 0; a stage adds its own.
        last: the loss at the last saved state, a mean over the ranks, and the telemetry of the step's parts then.
        figures: the last measurements.
        records: the log of records, inside ``open_records``.
    """

    task: Task[Config]
    folder: Path
    signals: StopSignals
    after_launch: Callable[[], object]
    begun: Begun[Config] | None = None
    is_kept: bool = True

    def __post_init__(self) -> None:
        task = self.task
        self.config = task.config
        self.ranks = task.ranks
        self.evaluator = task.evaluator
        self.states = RunStates(self.folder)
        self.figures = RunFigures(task)
        self.progress = Progress()
        self.divergence = DivergenceDetector()
        self.last: dict[str, Any] = {"loss": None, "parts": {}}
        self.records: MetricsLog
        self._is_new = True  # until ``restore`` has found a state
        self._first_order = 0  # see ``EpochLoop``
        self._result: Result | None = None
        frozen = to_arrays(parameter for parameter in task.network.get_parameters() if not parameter.requires_grad)
        # An attention mask can be -inf from the beginning; that does not mean that training diverged.
        self._constants = {name for name, value in frozen.items() if not np.isfinite(value).all()}
        self.pins = self.ranks.run_on_rank_zero(lambda: pins_of_data(task.data, task.images)) or {}
        # With another number of threads MindSpore draws other crops and flips. The pin has a name like a split's, so a
        # run that began without it can be resumed.
        self.pins["DATA/train, threads"] = Pin(str(task.training_batches.workers))
        self.pins["devices"] = Pin(str(self.ranks.group_size))

    @property
    def n_steps(self) -> int:
        """Return the number of steps of the run so far."""
        return max(0, self.progress.n_steps(self.task.steps_per_epoch))

    @property
    def finished_epochs(self) -> int:
        """Return the number of epochs that have ended."""
        return self.progress.epoch if self.progress.done == self.task.steps_per_epoch else self.progress.epoch - 1

    def loop(self, name: str, step: Step, first_order: int = 0) -> EpochLoop:
        """Make the loop over the epochs with the run's configuration; see ``EpochLoop`` for the arguments."""
        config = self.config
        self._first_order = first_order
        return EpochLoop(
            name,
            step,
            self.task.training_batches,
            seed=config.seed,
            n_epochs=config.n_epochs,
            first_order=first_order,
            save_every_steps=config.save_every_steps,
            read_every_steps=config.read_every_steps,
            ranks=self.ranks,
            signals=self.signals,
            after_launch=self.after_launch,
        )

    def restore(self, step: Step) -> RunState | None:
        """Restore the step on every rank from the newest state, and return the state; return None for a new run.

        The records file is checked, and cut to its length when the state was saved.

        Raises:
            ConfigError: an input has changed, or ``epochs`` is below the epoch that the run has reached.
            RunError: no state can be read, or records are lost; a DimredError on the other ranks.
            CheckpointError: the state belongs to a different network.
        """
        newest = self.ranks.run_on_rank_zero(self._newest_state)
        state: RunState | None = self.ranks.share(newest, read_state)
        if state is not None:
            self._continue_from(state, step)
        return state

    def _continue_from(self, state: RunState, step: Step) -> None:
        n_epochs = self.config.n_epochs
        progress = self.progress
        progress.epoch, progress.done, progress.seconds = (state.values[key] for key in ("epoch", "done", "seconds"))
        if n_epochs < progress.epoch and self.n_steps > 0:
            did = "finished" if self.finished_epochs == progress.epoch else "begun"
            raise ConfigError(
                f"epochs is {n_epochs}, but the run has {did} epoch {progress.epoch}; --set epochs to at least that"
            )
        step.restore(state.arrays, str(state.path))
        cut_metrics(self.folder / METRICS, state.values["metrics"], self.ranks)
        self._is_new = False
        _log.info(f"continuing after step {progress.done} of epoch {progress.epoch}, from {state.path}")
        self.last = state.values["last"]
        self.divergence = DivergenceDetector(state.values["first_loss"])

    def _newest_state(self) -> RunState | None:
        if self.begun is None:
            return None
        self.begun.check(self.pins)
        return self.states.newest(_log.info)

    def save(self, arrays: Mapping[str, np.ndarray], **values: Any) -> None:
        """Save a state, on rank 0: arrays, and JSON values in addition to the ones that every run has."""
        progress = self.progress
        known = {
            "epoch": progress.epoch,
            "done": progress.done,
            "seconds": progress.seconds,
            "metrics": self.records.mark(),
            "last": self.last,
            "first_loss": self.divergence.first_loss,
            **values,
        }
        self.ranks.run_on_rank_zero(lambda: retry(lambda: self.states.save(self.n_steps, arrays, known)))

    def arrays_of(self, step: Step) -> dict[str, np.ndarray]:
        """Note the last loss, average all statistics over the ranks, and return the step's state to save.

        All ranks call this.

        Raises:
            DivergedError: a number that was finite at first no longer is; a DimredError on the other ranks.
        """
        if self._result is not None:
            record = self._result.record()
            parts = {name: record[name] for part in step.parts for name in part.telemetry}
            self.last = {"loss": record.get("loss_after", record["loss"]), "parts": parts}
        of_parts = [statistic for part in step.parts for statistic in part.statistics]
        # Each rank saw only its own images.
        self.ranks.all_reduce_mean([*moving_statistics(self.task.network), *of_parts])
        arrays = step.state()
        self.ranks.run_on_rank_zero(lambda: check_finite(arrays, self.n_steps, self._constants))
        return arrays

    def note(self, result: Result, *, checks_divergence: bool = True) -> None:
        """Note the result of the last step, and check its loss for divergence; all ranks call this.

        Args:
            result: the step's result.
            checks_divergence: false for a search: its step changes nothing if the loss is not finite.

        Raises:
            DataError: the loss is not finite, and neither is an input of the step, on this rank or another one.
            DivergedError: training diverged.
        """
        self._result = result
        loss = float(result.loss)
        if not math.isfinite(loss):
            self._check_inputs()
        if checks_divergence:
            self.divergence.check(loss, self.n_steps)

    def _check_inputs(self) -> None:
        """Look at the last step's inputs on every rank; raise a DataError that names a faulty sample, if any."""
        progress = self.progress
        batches = self.task.training_batches
        order = self._first_order + progress.epoch
        found = None
        try:
            fault = batches.fault_of_step(self.config.seed, order, progress.done)
            if fault is not None:
                found = DataError(f"{fault}, so the loss of step {self.n_steps} is not finite; correct the sample")
        except DataError as error:
            found = error
        if told := self.ranks.first_fault(found):
            raise found or told

    def write_configuration(self) -> None:
        """Write ``config.yaml`` and ``versions.json``, each rank into its own folder."""
        atomic_write(self.folder / CONFIG, CONFIGURATION.sealed(config_text(self.config)))
        write_versions(self.folder)

    def write_pins(self) -> None:
        """Write ``pins.json`` after the first state, each rank into its own folder; from then on the run has begun."""
        before = {} if self.begun is None else self.begun.pins
        write_pins(self.folder, before | self.pins)

    @contextmanager
    def open_records(self) -> Iterator[None]:
        """Open the records file inside the block; a new run begins with an empty one."""
        file = self.folder / METRICS
        if self._is_new:
            atomic_write(file, b"")
        is_heard = self.config.tensorboard or self.config.callback is not None
        listeners = self._listeners() if is_heard and self.ranks.is_rank_zero else ()
        with MetricsLog(file, listeners) as self.records:
            yield

    def _listeners(self) -> list[Callable[[Record], object]]:
        listeners = list[Callable[[Record], object]]()
        if self.config.tensorboard:
            last = next(iter(deque(each_record(self.folder / METRICS), maxlen=1)), None)
            listeners.append(TensorBoard(self.folder / TENSORBOARD, last))
        if self.config.callback is not None:
            listeners.append(make_callback(self.config.callback, self.folder))
        return listeners

    def measure(self, step: Step, choose: Callable[[], object] = lambda: None) -> None:
        """Tell the launcher that the run is evaluating, and measure the network; see ``RunFigures.measure``."""
        tell_position("evaluating after", self.n_steps)
        self.figures.measure(step, choose)

    def record_epoch(self, evaluation_seconds: float, **more: Any) -> None:
        """Write an epoch's record: its last loss, the measured metrics, what the parts report, and its seconds.

        Args:
            evaluation_seconds: wall seconds that measuring and saving took.
            more: further values by name.
        """
        self.records.write(
            epoch=self.progress.epoch,
            step=self.n_steps,
            loss=self.last["loss"],
            metrics=self.figures.values,
            **more,
            **self.last["parts"],
            seconds=self.progress.seconds,
            evaluation_seconds=evaluation_seconds,
        )

    def log_epoch(self, step: Step) -> str:
        """Log an epoch's two lines, for programs and for people, and return the status for the progress bar.

        Programs look for ``epoch: 1 step: 74 loss is 0.8713``. People read
        ``epoch 12/40  step 74  loss 0.8713  lr 0.2  val 84.1 %  2.1 s``; a metric that was not measured is left out.
        """
        progress = self.progress
        loss = self.last["loss"]
        text = self.figures.text(1)
        shown = loss_text(loss)
        parts = [f"epoch {progress.epoch}/{self.config.n_epochs}", f"step {progress.done}", f"loss {shown}"]
        rate = last_rate(step.optimizer)
        if rate is not None:
            parts.append(f"lr {rate:.3g}")
        if text:
            parts.append(f"{self.config.data.eval_split} {text}")
        _log.info(f"epoch: {progress.epoch} step: {progress.done} loss is {'nan' if loss is None else loss}")
        _log.info("  ".join([*parts, f"{progress.seconds:.1f} s"]))
        return f"loss {shown}" + (f", {self.figures.metrics[0].name} {text}" if text else "")


@contextmanager
def open_run(
    folder: Path, task: Task[Config], begun: Begun[Config] | None = None, fast_dev_run: bool = False
) -> Iterator[Run[Config]]:
    """Make or reopen a run's folder, hold its lock, and turn the run's faults into errors with a remedy.

    Args:
        folder: the folder; it has passed ``check_run_folder``.
        task: the stage's task.
        begun: the run that is resumed, as it began; None for a new one.
        fast_dev_run: whether to run one step only, and keep nothing.

    Raises:
        ConfigError: the folder can't be made.
        RunError: another process is using it.
        FaultError, StoppedError: from the block; see ``translate_errors``.
    """
    if fast_dev_run:
        task = task.shortened(one_step_of(task.config))
    profile = task.config.profile
    with (
        _marked_lines() if fast_dev_run else nullcontext(),
        run_folder(folder),
        redirect_native_stderr(folder / MINDSPORE_LOG) if sys.stderr.isatty() else nullcontext(),
        StopSignals() as signals,
        translate_errors(RunStates(folder) if task.ranks.is_rank_zero else None, is_kept=not fast_dev_run),
        nullcontext(lambda: None) if profile is None else StepProfiler(profile, folder / PROFILE) as after_launch,
    ):
        _log.debug("preparing the run")
        yield Run(task, folder, signals, after_launch, begun, is_kept=not fast_dev_run)


@contextmanager
def _marked_lines() -> Iterator[None]:
    """Prefix each line logged inside the block with a note that this is a trial."""
    handlers = logging.getLogger("dimred").handlers
    for handler in handlers:
        handler.setFormatter(logging.Formatter("(trial: figures mean nothing) %(message)s"))
    try:
        yield
    finally:
        for handler in handlers:
            handler.setFormatter(None)


def one_step_of(config: Config) -> Config:
    """Return the configuration for a one-step run that goes through every phase of the whole run.

    With ``stop``, a stage 1 run makes two steps, because an average needs two snapshots. Build the step from the whole
    run's configuration, because a schedule can't be that short.
    """
    changes: dict[str, Any] = {"epochs": min(1, config.n_epochs), "reestimate_batches": 1}
    if isinstance(config, StageOneConfig):
        snapshots = config.snapshots.model_copy(update={"per_epoch": 1, "first_epoch": 1})
        changes |= {"snapshots": snapshots, "evaluate_every_epochs": 1}
        if config.stop is not None:
            changes |= {"epochs": 2, "stop": config.stop.model_copy(update={"every_epochs": 1})}
    return config.model_copy(update=changes)
