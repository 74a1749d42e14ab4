"""Save states, write records, measure the network and log, beside the steps of a run of either stage."""

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from mindspore import nn

from dimred.config import StageOneConfig, StageTwoConfig
from dimred.data.batches import Batches
from dimred.errors import ConfigError
from dimred.evaluation.evaluator import OnSplits
from dimred.evaluation.scores import Scores
from dimred.io.atomic import retry
from dimred.io.metrics_file import ACCURACY, metric_text
from dimred.launch.channel import tell_alive, tell_position
from dimred.stages.faults import DivergenceDetector
from dimred.stages.loop import EpochLoop, Observer, Place
from dimred.stages.records import MetricsLog
from dimred.stages.run_folder import Session
from dimred.stages.states import RunState
from dimred.train_step.network_state import moving_statistics
from dimred.train_step.optimizers import last_rate, weights_to_use
from dimred.train_step.protocol import Result, Step
from dimred.vectors.parameters import preserved

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class StageRun(Observer):
    """A run of a stage in its folder: the loop, the states to resume from, and the measurements after an epoch.

    Attributes:
        session: the run's session.
        settings: the configuration.
        network: the network in ``step``.
        step: the cell that is called with each batch.
        images: split -> its batches, of all splits that the run reads.
        scores: loss and metric that the network is measured by.
        last: the loss at the last saved state, and what clipping and loss scaling reported there.
        metrics_length: bytes of the metrics at the state that the run resumes from; 0 for a new run.
        measured: the last measurement: key of the record -> metric.
    """

    session: Session
    settings: StageOneConfig | StageTwoConfig
    network: nn.Cell
    step: Step
    images: Mapping[str, Batches]
    scores: Scores

    name: ClassVar[str]
    first_epoch: ClassVar[int] = 1
    first_order: ClassVar[int] = 0  # see ``EpochLoop``
    metrics: MetricsLog = field(init=False)

    def __post_init__(self) -> None:
        session, settings, trained = self.session, self.settings, self.images[self.settings.trained_split]
        self.ranks, self.n_epochs, self.place = session.ranks, settings.n_epochs, Place(epoch=self.first_epoch)
        self.loop = EpochLoop(
            self.name, self.step, trained, seed=settings.seed, n_epochs=self.n_epochs, first_order=self.first_order,
            save_every_steps=settings.save_every_steps, read_every=settings.read_every, ranks=session.ranks,
            signals=session.signals,
        )  # fmt: skip
        self.per_epoch = trained.steps_per_epoch
        # BatchNorm's statistics and their moving averages: each rank has those of its own images.
        averaged = [] if self.step.ema is None else self.step.ema.statistics
        self.statistics = [*moving_statistics(self.network), *averaged]
        self.on = OnSplits(
            self.network, self.images, self.scores, seed=settings.seed, n_batches=settings.reestimate_batches,
            ranks=session.ranks, at_batch=tell_alive,
        )  # fmt: skip
        self.reestimates = settings.reestimate_batch_norm and self.on.has_batch_norm
        self.metric = settings.metric_name
        self.divergence = DivergenceDetector()
        self.last: dict[str, Any] = {"loss": None, "parts": {}}
        self.measured: dict[str, float] = {}
        self.metrics_length = 0
        self._result: Any = None
        session.identify_data(self.images)

    @property
    def n_steps(self) -> int:
        """Return the number of steps of the run so far."""
        return max(0, self.place.n_steps(self.per_epoch))

    @property
    def finished_epochs(self) -> int:
        """Return the number of epochs that have ended."""
        return self.place.epoch if self.place.done == self.per_epoch else self.place.epoch - 1

    def restore_state(self, allowed: list[str]) -> RunState | None:
        """Restore the newest state of the run in the folder; return None if there is none.

        Args:
            allowed: keys that may differ from before.

        Raises:
            ConfigError: another key has changed, an epoch has a different number of steps, or ``epochs`` is below what
                the run has done.
            CheckpointError: the state belongs to a different network.
        """
        found = self.session.newest_state(allowed)
        if found is None:
            return None
        place, per_epoch = self.place, self.per_epoch
        place.epoch, place.done, place.seconds = (found.progress[key] for key in ("epoch", "done", "seconds"))
        if found.step != place.n_steps(per_epoch):
            raise ConfigError(
                f"an epoch has {per_epoch} steps, but the run came to step {place.done} of epoch {place.epoch} in "
                f"{found.step} steps, and its rate, snapshots and states go by steps; give the data, the batch size "
                "and the devices that it was begun with, or begin a new run in another folder"
            )
        if self.n_epochs < place.epoch:
            did = "done" if self.finished_epochs == place.epoch else "begun"
            raise ConfigError(
                f"epochs is {self.n_epochs}, but the run has {did} {place.epoch}; --set epochs to that or more"
            )
        self.step.restore(found.arrays, str(found.path))
        _log.info(f"going on after step {place.done} of epoch {place.epoch}, from {found.path}")
        self.metrics_length = found.progress["metrics"]
        self.last = found.progress["last"]
        self.divergence = DivergenceDetector(found.progress["first_loss"])
        return found

    def after_launch(self) -> None:
        """Count the step for the profiler."""
        self.session.profiler.after_step()

    def after_step(self, result: Result, place: Place) -> str | None:
        """Check the loss for divergence."""
        self._result = result
        self.divergence.see(float(result.loss), self.n_steps)
        return None

    def arrays_to_save(self) -> dict[str, np.ndarray]:
        """Note the last step, average BatchNorm's statistics over the ranks, and return the step's state."""
        if self._result is not None:
            self.last = self.last_step(self._result)
        self.ranks.all_reduce_mean(self.statistics)
        return self.step.state()

    def last_step(self, result: Result) -> dict[str, Any]:
        """Return a step's loss, a mean over the ranks, and what clipping and loss scale report if they are on."""
        record, parts = result.record(), list[str]()
        if self.settings.clipping.norm is not None:
            parts += ["grad_norm"]
        if self.settings.loss_scale.name != "none":
            parts += ["loss_scale", "n_overflows"]
        return {"loss": record["loss"], "parts": {part: record[part] for part in parts}}

    def save_state(self, place: Place, arrays: dict[str, np.ndarray], **more: Any) -> None:
        """Save a state, on rank 0; ``more`` are plain JSON values in addition to those of every run."""
        progress = {
            "epoch": place.epoch, "done": place.done, "seconds": place.seconds, "run": self.session.identity,
            "metrics": self.metrics.mark(), "last": self.last, "first_loss": self.divergence.first_loss, **more,
        }  # fmt: skip
        self.ranks.run_on_rank_zero(lambda: retry(lambda: self.session.states.save(self.n_steps, arrays, progress)))

    def measure(self, choose: Callable[[], object] | None = None) -> dict[str, float]:
        """Measure the network as trained, with re-estimated BatchNorm statistics, and with the EMA's weights.

        In schedule-free training the averaged point is measured. Training goes on as if nothing had been measured, to
        the byte.

        Args:
            choose: measures on ``val``; called while BatchNorm has the statistics with which the network would be kept.

        Returns:
            Key of the record -> metric, for the measurements that this run makes.
        """
        tell_position("evaluating after", self.n_steps)
        split, ema = self.settings.data.eval_split, self.step.ema
        with weights_to_use(self.step.optimizer), preserved(moving_statistics(self.network)):
            found = {self.metric: self.on.metric(split)}
            if self.reestimates:
                self.on.reestimate()
                found[f"{self.metric}_reestimated"] = self.on.metric(split)
            if choose is not None:
                choose()
        if ema is not None:
            with ema.in_place():
                found[f"ema_{self.metric}"] = self.on.metric(split)
        self.measured = found
        return found

    def say_epoch(self, place: Place) -> str:
        """Log an epoch's two lines, for programs and for people, and return the status for the progress bar.

        Programs look for ``epoch: 1 step: 74 loss is 0.8713``. People read
        ``epoch 12/40  step 74  loss 0.8713  lr 0.2  val 84.1 %  2.1 s``; what was not measured is left out.
        """
        loss, text = self.last["loss"], self.measured_text(1)
        shown = loss_text(loss)
        parts = [f"epoch {place.epoch}/{self.n_epochs}", f"step {self.per_epoch}", f"loss {shown}"]
        if (rate := last_rate(self.step.optimizer)) is not None:
            parts.append(f"lr {rate:.3g}")
        if text:
            parts.append(f"{self.settings.data.eval_split} {text}")
        _log.info(f"epoch: {place.epoch} step: {self.per_epoch} loss is {'nan' if loss is None else loss}")
        _log.info("  ".join([*parts, f"{place.seconds:.1f} s"]))
        return f"loss {shown}" + (f", {self.metric} {text}" if text else "")

    def measured_text(self, decimals: int) -> str:
        """Format the metric of the last measurement, and the re-estimated one if there is one; "" if not measured."""
        if self.metric not in self.measured:
            return ""
        again = self.measured.get(f"{self.metric}_reestimated")
        beside = "" if again is None else f" ({metric_text(self.metric, again, decimals)} re-estimated)"
        return metric_text(self.metric, self.measured[self.metric], decimals) + beside

    def say_end(self, value: float | None, how: str, text: str, network: Path, command: Sequence[str]) -> None:
        """Log how good the network is, where its file is, and which command comes next.

        Args:
            value: the metric, for programs, which look for ``{'Accuracy': 0.88}``; None if it was not measured.
            how: how the BatchNorm statistics of ``text`` were obtained, such as ``re-estimated``.
            text: the measured value, for people; empty if there is none.
            network: the file to use.
            command: the words of the next command.
        """
        _log.info(str({"Accuracy" if self.metric == ACCURACY else self.metric: value}))
        if not self.session.is_kept:
            return
        if text:
            statistics = f", BatchNorm statistics {how}" if self.on.has_batch_norm else ""
            _log.info(f"{self.metric} on {self.settings.data.eval_split!r}{statistics}: {text}")
        if self.settings.eval_split_warning is not None:
            _log.info(self.settings.eval_split_warning)
        _log.info(f"network: {network}")
        _log.info(f"next: {shlex.join(command)}")


def loss_text(loss: float | None) -> str:
    """Format the loss of a record; "nan" if it is None, which stands for a loss that was not finite."""
    return "nan" if loss is None else f"{loss:.4f}"
