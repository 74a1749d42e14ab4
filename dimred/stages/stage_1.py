"""Stage 1: ordinary training that keeps a rolling series of weight snapshots."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.series import CheckpointSeries, SeriesWriter
from dimred.checkpoints.states import FullCheckpoints, check_finite
from dimred.config import StageOneConfig
from dimred.io.atomic import retry
from dimred.launch.environment import log_commands
from dimred.run_files.run_names import SNAPSHOTS, STAGE_1_CHECKPOINTS
from dimred.runs.begun import Pin
from dimred.runs.first_weights import FirstWeights
from dimred.runs.loop import Progress
from dimred.runs.run import Run
from dimred.stages.early_stop import EarlyStop
from dimred.stages.next_command import commands_after_stage_1
from dimred.train_step.interval_mean import IntervalMean
from dimred.train_step.optimizer_state import has_averaged_point, weights_to_use
from dimred.train_step.part import parts_of
from dimred.train_step.protocol import Result, Step
from dimred.train_step.statistics import moving_statistics
from dimred.vectors.parameters import preserved, to_arrays

_log = logging.getLogger(__name__)


class StageOne:
    """Stage 1: it keeps a series of snapshots and, if asked, ends early.

    Args:
        run: the run.
        step: the training step.
        weights: what the network took from ``model.weights``, on rank 0; None without it.

    Attributes:
        checkpoints, snapshots: its files, on rank 0, once ``go`` has opened them.
    """

    checkpoints: FullCheckpoints
    snapshots: SeriesWriter

    def __init__(self, run: Run[StageOneConfig], step: Step, weights: FirstWeights | None = None) -> None:
        self.run = run
        self.step = step
        self._folder = run.folder / STAGE_1_CHECKPOINTS
        self._per_epoch = run.task.steps_per_epoch
        if weights is not None:
            run.pins["model.weights"] = Pin(weights.digest, str(weights.path.resolve()))
        self._mean = next(iter(parts_of(IntervalMean, step.parts)), None)  # with snapshots.content mean
        # A full checkpoint is saved where an interval begins, so it holds none of these.
        self._of_mean = [] if self._mean is None else self._mean.parameters
        n_snapshots = run.config.snapshots.per_epoch
        # The steps, from 1, after which a snapshot is taken in each epoch that has snapshots.
        self._snapshot_steps = {round(self._per_epoch * part / n_snapshots) for part in range(1, n_snapshots + 1)}
        self.stop = None
        if run.config.stop is not None:
            self.stop = EarlyStop(run.config.stop, run.task.network, run.evaluator, run.ranks)

    def go(self, first: tuple[dict[str, np.ndarray], int] | None = None) -> None:
        """Begin or resume, train the remaining epochs, and log the result, the network's file and the next command.

        Args:
            first: the first result of ``check_stage_1``; used by a new run.

        Raises:
            ConfigError: ``epochs`` is below the epoch that the run has reached, or an input has changed.
            RunError, CheckpointError: the state can't be restored; see ``Run.restore``.
        """
        is_new = self._restore(first)
        self.run.write_configuration()
        self.run.ranks.run_on_rank_zero(self._rewind)
        with self.run.open_records():
            if is_new:
                self._save_state(self.run.arrays_of(self.step))
            self.run.write_pins()
            # A stop signal may have come before this was done.
            if self._is_to_measure(self.run.progress) or self._lacks_last_checkpoint():
                self.save(self.run.progress)
            self.run.loop("stage 1", self.step).run(self.run.progress, self)
        self._end()

    def _restore(self, first: tuple[dict[str, np.ndarray], int] | None) -> bool:
        """Restore the newest state, or begin a new run, with ``first`` if given; return whether the run is new."""
        state = self.run.restore(self.step)
        if state is not None and self.stop is not None:
            self.stop.restore(state)
        elif state is None and first is not None:
            arrays, epoch = first
            self.step.restore({**to_arrays(self._of_mean), **arrays}, "--from")
            if self.run.is_kept:  # a trial has only one epoch
                self.run.progress.epoch = epoch + 1
        if state is None and self._mean is not None:
            self._mean.begin()
        return state is None

    def _end(self) -> None:
        run = self.run
        stop = self.stop
        if stop is not None and self.has_ended:
            on = "to train on, repeat the command with --resume --set stop=null"
            _log.info(f"stage 1 ends after epoch {run.finished_epochs}: {stop.reason}; {on}")
        if self.step.ema is not None:
            run.figures.log_ema()
        is_averaged = has_averaged_point(self.step.optimizer)
        network = self._save_averaged() if is_averaged else self._last_checkpoint
        run.figures.log_end(network, is_averaged and run.figures.reestimates, run.is_kept)
        if run.is_kept and run.ranks.is_rank_zero:  # only rank 0 has the files
            report = [["report", str(run.folder.absolute())]]
            log_commands(*(report if is_averaged else commands_after_stage_1(run.task, network, run.folder)))

    def _save_averaged(self) -> Path:
        """Save schedule-free training's averaged point with its own BatchNorm statistics; return the path."""
        path = self._folder / f"{self.run.config.model.file_prefix}-final.ckpt"
        with weights_to_use(self.step.optimizer), preserved(moving_statistics(self.run.task.network)):
            if self.run.figures.reestimates:
                self.run.evaluator.reestimate()
            arrays = to_arrays(self.run.task.network.get_parameters())
        self.run.ranks.run_on_rank_zero(lambda: retry(lambda: write_checkpoint(path, arrays)))
        return path

    @property
    def has_ended(self) -> bool:
        """Return whether ``stop`` ends training after this epoch."""
        return self.stop is not None and self.stop.reason is not None

    def _rewind(self) -> None:
        """Open the full checkpoints and the snapshots, without those taken after the step that the run resumes from."""
        prefix = self.run.config.model.file_prefix
        options = self.run.config.snapshots
        self.checkpoints = FullCheckpoints(self._folder, prefix, self.run.config.checkpoints.keep)
        self.checkpoints.forget_after(self.run.finished_epochs)
        self.snapshots = CheckpointSeries.resume(
            self._folder / SNAPSHOTS, options.keep, prefix=prefix, format=options.format
        )
        self.snapshots.rewind(self.run.n_steps)
        self.run.states.forget_after(self.run.n_steps)

    def reads_after(self, done: int) -> bool:
        """Return whether a snapshot is due after step ``done`` of the epoch."""
        return self.run.progress.epoch >= self.run.config.snapshots.first_epoch and done in self._snapshot_steps

    def after_step(self, result: Result, progress: Progress) -> None:
        """Check the loss for divergence, and take a snapshot if one is due."""
        self.run.note(result)
        if self.reads_after(progress.done):
            weights = self._weights_to_keep()
            check_finite(weights, self.run.n_steps)
            self.run.ranks.run_on_rank_zero(lambda: self._append(weights))
        elif self._mean is not None and progress.done == self._per_epoch:
            self._mean.begin()  # so that the first mean begins with the first epoch that has snapshots

    def _weights_to_keep(self) -> dict[str, np.ndarray]:
        if self._mean is not None:
            return self._mean.take()
        with weights_to_use(self.step.optimizer):
            return to_arrays(self.run.task.network.trainable_params())

    def _append(self, weights: dict[str, np.ndarray]) -> None:
        progress = self.run.progress
        retry(lambda: self.snapshots.append(weights, self.run.n_steps, progress.epoch, step_in_epoch=progress.done))

    def save(self, progress: Progress) -> None:
        """Save the state to resume from; at an epoch's end also measure, and save a full checkpoint, if due."""
        arrays = self.run.arrays_of(self.step)
        if self.stop is not None and self._is_to_measure(progress):
            self._save_state(arrays)  # a stop signal may not leave enough time to measure
            snapshots = self.snapshots if self.run.ranks.is_rank_zero else None
            self.stop.measure(progress.epoch, self.run.n_steps, snapshots)
        is_due = progress.epoch % self.run.config.checkpoints.every_epochs == 0 or self._is_last(progress)
        if progress.done == self._per_epoch and is_due:
            epoch = progress.epoch
            of_mean = {parameter.name for parameter in self._of_mean}
            full = {name: array for name, array in arrays.items() if name not in of_mean}
            self.run.ranks.run_on_rank_zero(lambda: retry(lambda: self.checkpoints.save(epoch, self._per_epoch, full)))
        self._save_state(arrays)

    def _is_to_measure(self, progress: Progress) -> bool:
        return self.stop is not None and progress.done == self._per_epoch and self.stop.is_due(progress.epoch)

    def _lacks_last_checkpoint(self) -> bool:
        """Return whether a resumed run has no epochs left, because ``epochs`` changed, but lacks its checkpoint."""
        if self.run.progress.done < self._per_epoch or not self._is_last(self.run.progress):
            return False
        return self.run.ranks.any(self.run.ranks.is_rank_zero and not self._last_checkpoint.exists())

    @property
    def _last_checkpoint(self) -> Path:
        return self._folder / f"{self.run.config.model.file_prefix}-{self.run.finished_epochs}_{self._per_epoch}.ckpt"

    def _save_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        of_stop = {} if self.stop is None else self.stop.state_arrays()
        self.run.save({**arrays, **of_stop}, stop=self.stop and self.stop.progress())

    def _is_last(self, progress: Progress) -> bool:
        return progress.epoch == self.run.config.epochs or self.has_ended

    def after_epoch(self, progress: Progress) -> str:
        """Evaluate if due, record the epoch, and return the status for the progress bar."""
        run = self.run
        start = time.perf_counter()
        run.figures.values = {}
        if progress.epoch % self.run.config.evaluate_every_epochs == 0 or self._is_last(progress):
            run.measure(self.step)
        averaged = {} if self.stop is None else self.stop.record(progress.epoch)
        run.record_epoch(time.perf_counter() - start, **averaged)
        return run.log_epoch(self.step)
