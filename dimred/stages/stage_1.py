"""Stage 1's run: what it saves, records and evaluates beside its steps."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mindspore import get_context

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig
from dimred.errors import ConfigError
from dimred.io.atomic import retry
from dimred.io.run_names import SNAPSHOTS, STAGE_1_CHECKPOINTS
from dimred.stages.early_stop import AveragedStop
from dimred.stages.loop import Place
from dimred.stages.run import StageRun
from dimred.stages.states import FullCheckpoints, check_finite
from dimred.train_step.network_state import moving_statistics
from dimred.train_step.optimizers import UPDATES, weights_to_use
from dimred.train_step.protocol import Result
from dimred.train_step.schedule_free import ScheduleFree
from dimred.train_step.step import TrainStep
from dimred.vectors.parameters import preserved, to_arrays

_log = logging.getLogger(__name__)

_ENDS = ("epochs", "stop")  # keys that say where a run ends, not how it gets there


@dataclass(eq=False)
class Training(StageRun):
    """Ordinary training that keeps a rolling series of weight snapshots.

    Attributes:
        data: DATA as the user typed it, for the next command.
        options_of_stage_2: options of the next command.
    """

    settings: StageOneConfig
    step: TrainStep
    data: Path = Path("DATA")
    options_of_stage_2: Sequence[str] = ("--config", "STAGE_2.yaml")

    name = "stage 1"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.snapshots: CheckpointSeries | None = None  # on rank 0
        self.stop: AveragedStop | None = None
        if self.settings.stop is not None:
            self.stop = AveragedStop(self.settings.stop, self.network, self.on, self.ranks)

    def restore(self, first: tuple[dict[str, np.ndarray], int] | None, allowed: list[str]) -> None:
        """Resume the run in the folder, or begin one: after the epoch of the full checkpoint ``first``, if given.

        At a constant rate ``epochs`` and ``stop`` may differ from before, as they change no step that was made.

        Raises:
            ConfigError: another key has changed; ``epochs`` leaves nothing to do, or is below what the run has done; or
                ``first`` belongs to a run whose epochs have a different number of steps.
        """
        ends = _ENDS if self.settings.schedule.last_epoch is None else ()
        found = self.restore_state([*allowed, *ends])
        if found is not None:
            if self.stop is not None:
                self.stop.restore(found)
        elif first is not None:
            arrays, epoch = first
            self._check_begin(arrays, epoch)
            self.step.restore(arrays, "--from")
            self.place = Place(epoch + 1)

    def _check_begin(self, arrays: Mapping[str, np.ndarray], epoch: int) -> None:
        """Refuse a full checkpoint that leaves nothing to do, or whose epochs had a different number of steps."""
        if epoch >= self.settings.epochs:
            raise ConfigError(f"--from has done {epoch} epochs, and epochs is {self.settings.epochs}; --set it to more")
        n_updates, n_dropped = (int(np.sum(arrays.get(name, 0))) for name in (UPDATES, "loss_scale.overflows"))
        if not n_updates <= epoch * self.per_epoch <= n_updates + n_dropped:
            raise ConfigError(
                f"--from has made {n_updates} updates in {epoch} epochs, but an epoch has {self.per_epoch} steps here, "
                "and the rate goes by updates; give the data, the batch size and the devices of that run"
            )

    def run(self) -> None:
        """Train the remaining epochs, then log the result, the network's file, and the next command."""
        self.session.write_configuration()
        self.snapshots = self.ranks.run_on_rank_zero(self._rewind)
        with self.session.open_metrics(self.metrics_length) as self.metrics:
            if self._is_to_measure(self.place) or self._lacks_last_checkpoint():  # left undone when it was stopped
                self.save(self.place)
            self.loop.run(self.place, self)
        if self.stop is not None and self.has_ended:
            on = "to train on, the same command with --resume --set stop=null"
            _log.info(f"stage 1 ends after epoch {self.finished_epochs}: {self.stop.reason}; {on}")
        averaged = f"ema_{self.metric}"
        if averaged in self.measured:
            _log.info(f"with the average of the weights (EMA): {averaged} {self.measured[averaged]:.4f}")
        network = self._last_checkpoint
        if isinstance(self.step.optimizer, ScheduleFree):
            network, command = self._save_averaged(), ["dimred", "report", str(self.session.out)]
        else:
            device = ["--device-target", get_context("device_target"), "--devices", str(self.ranks.group_size)]
            command = ["dimred", "train", "stage-2", str(self.data), str(network), *self.options_of_stage_2, *device]
        self.say_end(self.measured.get(self.metric), "as trained", self.measured_text(2), network, command)

    def _save_averaged(self) -> Path:
        """Save schedule-free training's averaged point with BatchNorm statistics of its own; return the path."""
        path = self.session.out / STAGE_1_CHECKPOINTS / f"{self.settings.model.file_prefix}-final.ckpt"
        with weights_to_use(self.step.optimizer), preserved(moving_statistics(self.network)):
            if self.reestimates:
                self.on.reestimate()
            arrays = to_arrays(self.network.get_parameters())
        self.ranks.run_on_rank_zero(lambda: retry(lambda: write_checkpoint(path, arrays)))
        return path

    @property
    def has_ended(self) -> bool:
        """Return whether ``stop`` ends the training after this epoch."""
        return self.stop is not None and self.stop.reason is not None

    def _rewind(self) -> CheckpointSeries:
        """Remove what was written after the place that the run goes on from, and return the remaining snapshots."""
        prefix, folder = self.settings.model.file_prefix, self.session.out / STAGE_1_CHECKPOINTS
        self.checkpoints = FullCheckpoints(folder, prefix, self.settings.checkpoints.keep)
        self.checkpoints.forget_after(self.finished_epochs)
        options = self.settings.snapshots
        snapshots = CheckpointSeries(folder / SNAPSHOTS, options.keep, prefix=prefix, format=options.format)
        snapshots.rewind(self.n_steps)
        self.session.states.forget_after(self.n_steps)
        return snapshots

    def reads_after(self, done: int) -> bool:
        """Return whether a snapshot is due after that step of the epoch."""
        return done in self._snapshot_steps()

    def after_step(self, result: Result, place: Place) -> None:
        """Check the loss for divergence, and take a snapshot if one is due."""
        super().after_step(result, place)
        if place.done in self._snapshot_steps():
            with weights_to_use(self.step.optimizer):
                weights = to_arrays(self.network.trainable_params())
            check_finite(weights, self.n_steps)
            self.ranks.run_on_rank_zero(lambda: self._append(weights))

    def _snapshot_steps(self) -> set[int]:
        """Return the steps of this epoch after which a snapshot is taken."""
        if self.place.epoch < self.settings.snapshots.first_epoch:
            return set()
        count = self.settings.snapshots.per_epoch
        return {round(self.per_epoch * part / count) for part in range(1, count + 1)}

    def _append(self, weights: dict[str, np.ndarray]) -> None:
        snapshots, place = self.snapshots, self.place
        if snapshots is not None:
            retry(lambda: snapshots.append(weights, self.n_steps, place.epoch, step_in_epoch=place.done))

    def save(self, place: Place) -> None:
        """Save the state to resume from; at the end of an epoch also measure and save a full checkpoint, if due."""
        arrays = self.arrays_to_save()
        if self.stop is not None and self._is_to_measure(place):
            self._save_state(place, arrays)  # measuring may take longer than a signal leaves time for
            self.stop.measure(place.epoch, self.n_steps, self.snapshots)
        is_due = place.epoch % self.settings.checkpoints.every_epochs == 0 or self._is_last(place)
        if place.done == self.per_epoch and is_due:
            self.ranks.run_on_rank_zero(lambda: self._save_full(place.epoch, arrays))
        self._save_state(place, arrays)

    def _is_to_measure(self, place: Place) -> bool:
        return self.stop is not None and place.done == self.per_epoch and self.stop.is_due(place.epoch)

    def _lacks_last_checkpoint(self) -> bool:
        """Return whether a resumed run is already at its end, because ``epochs`` changed, but lacks its checkpoint."""
        if self.place.done < self.per_epoch or not self._is_last(self.place):
            return False
        return self.ranks.any(self.ranks.is_rank_zero and not self._last_checkpoint.exists())

    @property
    def _last_checkpoint(self) -> Path:
        name = f"{self.settings.model.file_prefix}-{self.finished_epochs}_{self.per_epoch}.ckpt"
        return self.session.out / STAGE_1_CHECKPOINTS / name

    def _save_state(self, place: Place, arrays: Mapping[str, np.ndarray]) -> None:
        measured = {} if self.stop is None else self.stop.state_arrays()
        self.save_state(place, {**arrays, **measured}, stop=self.stop and self.stop.progress())

    def _is_last(self, place: Place) -> bool:
        return place.epoch == self.settings.epochs or self.has_ended

    def _save_full(self, epoch: int, arrays: dict[str, np.ndarray]) -> None:
        check_finite(arrays, self.n_steps)
        retry(lambda: self.checkpoints.save(epoch, self.per_epoch, arrays))

    def after_epoch(self, place: Place) -> str:
        """Evaluate if that is due, record the epoch, and return the status for the progress bar."""
        started, self.measured = time.perf_counter(), {}
        if place.epoch % self.settings.evaluate_every == 0 or self._is_last(place):
            self.measure()
        measured = {self.metric: None} | self.measured | ({} if self.stop is None else self.stop.record(place.epoch))
        self.metrics.write(
            epoch=place.epoch, step=self.n_steps, loss=self.last["loss"], **measured, **self.last["parts"],
            seconds=place.seconds, evaluation_seconds=time.perf_counter() - started,
        )  # fmt: skip
        return self.say_epoch(place)
