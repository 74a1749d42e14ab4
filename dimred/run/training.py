"""Stage 1's run: what it saves, records and evaluates beside the steps."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from mindspore import Parameter, nn

from dimred.config import StageOneConfig, StopConfig
from dimred.console import say
from dimred.data.batches import Batches
from dimred.errors import ConfigError
from dimred.evaluate.evaluator import OnSplits
from dimred.evaluate.scores import CLASSIFICATION, Scores
from dimred.files.atomic import retry
from dimred.files.metrics_file import metric_text
from dimred.files.run_names import SNAPSHOTS, STAGE_1_CHECKPOINTS
from dimred.launch.channel import tell_position
from dimred.run.averaged_stop import AveragedStop, NeverStop
from dimred.run.faults import DivergenceDetector
from dimred.run.loop import EpochLoop, Observer, Place
from dimred.run.metrics import metric_line
from dimred.run.session import Session
from dimred.run.states import FullCheckpoints, check_finite
from dimred.train_step.network_state import moving_statistics
from dimred.train_step.step import StepResult, TrainStep
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.weights.series import CheckpointSeries

_ENDS = ("epochs", "stop")  # keys that say where a run ends, not how it gets there


class Training(Observer):
    """Ordinary training that keeps a rolling series of weight snapshots.

    Args:
        session: of the run.
        settings: the configuration.
        network: in ``step``.
        step: stage 1's step.
        images: by split, those that this run reads.
        scores: what the network is measured by.
    """

    def __init__(
        self,
        session: Session,
        settings: StageOneConfig,
        network: nn.Cell,
        step: TrainStep,
        images: Mapping[str, Batches],
        scores: Scores = CLASSIFICATION,
    ):
        self.session, self.settings, self.ranks = session, settings, session.ranks
        self.network, self.step, train_images = network, step, images["train"]
        self.loop = EpochLoop(
            "stage 1", step, train_images, seed=settings.seed, n_epochs=settings.epochs,
            save_every_steps=settings.save_every_steps, ranks=session.ranks, signals=session.signals,
        )  # fmt: skip
        self.per_epoch = train_images.steps_per_epoch
        self.place = Place()
        self.statistics = [*moving_statistics(network), *([] if step.ema is None else step.ema.statistics)]
        n_batches = (settings.stop or StopConfig()).reestimate_batches
        self.on = OnSplits(network, images, scores, seed=settings.seed, n_batches=n_batches, ranks=session.ranks)
        self.divergence = DivergenceDetector()
        self.snapshots: CheckpointSeries | None = None  # on rank 0
        self.stop = NeverStop()
        if settings.stop is not None:
            self.stop = AveragedStop(settings.stop, network, self.on, session.ranks)
        self.last: dict[str, Any] = {"loss": None, "parts": {}}  # of the step that was saved last
        self._result: StepResult | None = None
        self.metric = settings.metric_name
        self._evaluated: dict[str, float | None] = {self.metric: None}
        self.session.identity["DATA"] = f"{train_images.n_images} images in {len(train_images.classes)} classes"

    def restore(self, first: tuple[dict[str, np.ndarray], int] | None, allowed: list[str]) -> None:
        """Resume the run in the folder; or begin, from the full checkpoint ``first`` and after its epoch if given.

        At a constant rate ``epochs`` and ``stop`` may differ from before: there they change no step that was made.

        Raises:
            ConfigError: the configuration has changed otherwise, or ``epochs`` is below what the run has done.
        """
        ends = _ENDS if self.settings.schedule.last_epoch is None else ()
        found = self.session.restore(parameters_to_save(self.step), self.place, [*allowed, *ends])
        if found is not None:
            if self.settings.epochs < self._finished_epochs:
                raise ConfigError(
                    f"epochs is {self.settings.epochs}, but the run has done {self._finished_epochs}; --set epochs to "
                    "that or more"
                )
            self.stop.restore(found)
            self.last = found.progress["last"]
            self.divergence = DivergenceDetector(found.progress["first_loss"])
        elif first is not None:
            arrays, epoch = first
            from_arrays(parameters_to_save(self.step), arrays, "--from")
            self.place = Place(epoch + 1)

    def run(self) -> None:
        """Train the epochs that are left."""
        self.session.write_configuration()
        self.snapshots = self.ranks.run_on_rank_zero(self._rewind)
        with self.session.open_metrics() as self.metrics:
            self.loop.run(self.place, self)
        if self.stop.reason is not None:
            self._tell_end()
        for name, value in self._evaluated.items():
            if name != self.metric:
                say(f"with the average of the weights (EMA): {name} {value:.4f}")
        say(metric_line(self.metric, self._evaluated[self.metric]))

    def _tell_end(self) -> None:
        name = f"{self.settings.model.file_prefix}-{self._finished_epochs}_{self.per_epoch}.ckpt"
        saved = self.session.out / STAGE_1_CHECKPOINTS / name
        say(
            f"stage 1 ends after epoch {self._finished_epochs}: {self.stop.reason}. It saved {saved}; next: dimred "
            f"train stage-2 DATA {saved}. To train on: the same command with --resume --set stop=null"
        )

    @property
    def has_ended(self) -> bool:
        """See ``Observer``."""
        return self.stop.reason is not None

    @property
    def _finished_epochs(self) -> int:
        return self.place.epoch if self.place.done == self.per_epoch else self.place.epoch - 1

    def _rewind(self) -> CheckpointSeries:
        """Bring back to where the run goes on whatever was written on the way; the snapshots that are left."""
        prefix, folder = self.settings.model.file_prefix, self.session.out / STAGE_1_CHECKPOINTS
        self.checkpoints = FullCheckpoints(folder, prefix, self.settings.checkpoints.keep)
        self.checkpoints.forget_after(self._finished_epochs)
        snapshots = CheckpointSeries(folder / SNAPSHOTS, keep=self.settings.snapshots.keep, prefix=prefix)
        snapshots.rewind(self._n_steps)
        self.session.states.forget_after(self._n_steps)
        return snapshots

    @property
    def _n_steps(self) -> int:
        return (self.place.epoch - 1) * self.per_epoch + self.place.done

    def after_step(self, result: StepResult, place: Place, n_samples: int) -> None:
        """Watch the loss; take a snapshot where one is due."""
        self._result = result
        self.divergence.see(result.loss, self._n_steps)
        if place.done in self._snapshot_steps():
            weights = to_arrays(self.network.trainable_params())
            check_finite(weights, self._n_steps)
            self.ranks.run_on_rank_zero(lambda: self._append(weights))

    def _snapshot_steps(self) -> set[int]:
        """The steps of this epoch after which a snapshot is taken."""
        if self.place.epoch < self.settings.snapshots.first_epoch:
            return set()
        count = self.settings.snapshots.per_epoch
        return {round(self.per_epoch * part / count) for part in range(1, count + 1)}

    def _append(self, weights: dict[str, np.ndarray]) -> None:
        snapshots, place = self.snapshots, self.place
        if snapshots is not None:
            retry(lambda: snapshots.append(weights, self._n_steps, place.epoch, step_in_epoch=place.done))

    def save(self, place: Place) -> None:
        """Save the state to resume from; before it, at the end of some epochs, measure, and save a full checkpoint."""
        if self._result is not None:
            loss = float(self.ranks.sum([self._result.loss.asnumpy()])[0]) / self.ranks.group_size
            self.last = {"loss": loss, "parts": self._parts(self._result)}
        self.ranks.all_reduce_mean(self.statistics)
        if place.done == self.per_epoch:
            self.stop.measure(place.epoch, self._n_steps, self.snapshots)
        arrays = to_arrays(parameters_to_save(self.step))
        is_due = place.epoch % self.settings.checkpoints.every_epochs == 0 or self._is_last(place)
        if place.done == self.per_epoch and is_due:
            self.ranks.run_on_rank_zero(lambda: self._save_full(place.epoch, arrays))
        self.session.save(
            self._n_steps, place, arrays | self.stop.state_arrays(), self.metrics,
            last=self.last, first_loss=self.divergence.first_loss, stop=self.stop.progress(),
        )  # fmt: skip

    def _is_last(self, place: Place) -> bool:
        return place.epoch == self.settings.epochs or self.has_ended

    def _save_full(self, epoch: int, arrays: dict[str, np.ndarray]) -> None:
        check_finite(arrays, self._n_steps)
        retry(lambda: self.checkpoints.save(epoch, self.per_epoch, arrays))

    def _parts(self, result: StepResult) -> dict[str, float]:
        """What the parts of the step report, where they are on."""
        parts = {}
        if self.settings.clipping.norm or self.settings.clipping.value:
            parts["grad_norm"] = float(result.grad_norm)
        if self.settings.loss_scale.kind != "none":
            parts |= {"loss_scale": float(result.loss_scale), "n_overflows": int(result.n_overflows)}
        return parts

    def after_epoch(self, place: Place) -> str:
        """Evaluate where that is due, and record the epoch."""
        say(f"epoch: {place.epoch} step: {self.per_epoch} loss is {self.last['loss']}")
        started = time.perf_counter()
        self._evaluated = {self.metric: None}
        if place.epoch % self.settings.evaluate_every == 0 or self._is_last(place):
            self._evaluated = self._evaluate()
        self.metrics.write(
            epoch=place.epoch, step=self._n_steps, loss=self.last["loss"], **self._evaluated, **self.last["parts"],
            **self.stop.record(place.epoch), seconds=place.seconds, evaluation_seconds=time.perf_counter() - started,
        )  # fmt: skip
        value = self._evaluated[self.metric]
        measured = "" if value is None else f", {self.metric} {metric_text(self.metric, value, 1)}"
        return f"loss {self.last['loss']:.3f}{measured}"

    def _evaluate(self) -> dict[str, float | None]:
        """The metric, and that of the EMA in place of the raw weights where there is one."""
        tell_position("evaluating after", self._n_steps)
        split = self.settings.data.eval_split
        found: dict[str, float | None] = {self.metric: self.on.metric(split)}
        if self.step.ema is not None:
            with self.step.ema.in_place():
                found[f"ema_{self.metric}"] = self.on.metric(split)
        return found


def parameters_to_save(step: TrainStep) -> list[Parameter]:
    """Every parameter but the learning rates, which the configuration gives again."""
    return [parameter for parameter in step.get_parameters() if parameter.name != "learning_rate"]
