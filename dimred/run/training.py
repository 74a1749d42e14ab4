"""Stage 1's run: what it saves, records and evaluates beside the steps."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, get_context, nn

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
from dimred.run.lines import epoch_line, metric_line, published_epoch_line, say_end
from dimred.run.loop import EpochLoop, Observer, Place
from dimred.run.session import Session
from dimred.run.states import FullCheckpoints, check_finite
from dimred.search.step import SubspaceTrainStep
from dimred.train_step.network_state import moving_statistics
from dimred.train_step.optimizers import UPDATES, last_rate
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
        data: as the user typed it, for the command that comes next.
        options_of_stage_2: for the same.
    """

    def __init__(
        self,
        session: Session,
        settings: StageOneConfig,
        network: nn.Cell,
        step: TrainStep,
        images: Mapping[str, Batches],
        scores: Scores = CLASSIFICATION,
        data: Path = Path("DATA"),
        options_of_stage_2: Sequence[str] = ("--config", "STAGE_2.yaml"),
    ):
        self.session, self.settings, self.ranks = session, settings, session.ranks
        self.network, self.step, train_images = network, step, images["train"]
        self.loop = EpochLoop(
            "stage 1", step, train_images, seed=settings.seed, n_epochs=settings.epochs,
            save_every_steps=settings.save_every_steps, ranks=session.ranks, signals=session.signals,
        )  # fmt: skip
        self.per_epoch = train_images.steps_per_epoch
        self.place = Place()
        self.statistics = own_statistics(network, step)
        n_batches = (settings.stop or StopConfig()).reestimate_batches
        self.on = OnSplits(network, images, scores, seed=settings.seed, n_batches=n_batches, ranks=session.ranks)
        self.divergence = DivergenceDetector()
        self.snapshots: CheckpointSeries | None = None  # on rank 0
        self.stop = NeverStop()
        if settings.stop is not None:
            self.stop = AveragedStop(settings.stop, network, self.on, session.ranks)
        self.last: dict[str, Any] = {"loss": None, "parts": {}}  # of the step that was saved last
        self._result: StepResult | None = None
        self.metric, self._name = settings.metric_name, settings.model.file_prefix
        self._data, self._options_of_stage_2 = str(data), options_of_stage_2
        self._evaluated: dict[str, float | None] = {self.metric: None}
        self.session.identity["DATA"] = f"{train_images.n_images} images in {len(train_images.classes)} classes"

    def restore(self, first: tuple[dict[str, np.ndarray], int] | None, allowed: list[str]) -> None:
        """Resume the run in the folder; or begin, from the full checkpoint ``first`` and after its epoch if given.

        At a constant rate ``epochs`` and ``stop`` may differ from before: there they change no step that was made.

        Raises:
            ConfigError: the configuration has changed otherwise; ``epochs`` leaves nothing to do, or is below what the
                run has done; or ``first`` is of a run whose epochs have other lengths.
        """
        ends = _ENDS if self.settings.schedule.last_epoch is None else ()
        found = self.session.restore(parameters_to_save(self.step), self.place, self.per_epoch, [*allowed, *ends])
        if found is not None:
            if self.settings.epochs < self.place.epoch:
                did = "done" if self._finished_epochs == self.place.epoch else "begun"
                raise ConfigError(
                    f"epochs is {self.settings.epochs}, but the run has {did} {self.place.epoch}; --set epochs to that "
                    "or more"
                )
            self.stop.restore(found)
            self.last = found.progress["last"]
            self.divergence = DivergenceDetector(found.progress["first_loss"])
        elif first is not None:
            arrays, epoch = first
            self._check_begin(arrays, epoch)
            from_arrays(parameters_to_save(self.step), arrays, "--from")
            self.place = Place(epoch + 1)

    def _check_begin(self, arrays: Mapping[str, np.ndarray], epoch: int) -> None:
        """ConfigError where a full checkpoint of this epoch leaves nothing to do, or had epochs of another length."""
        if epoch >= self.settings.epochs:
            raise ConfigError(f"--from has done {epoch} epochs, and epochs is {self.settings.epochs}; --set it to more")
        n_updates, n_dropped = (int(np.sum(arrays.get(name, 0))) for name in (UPDATES, "loss_scale.overflows"))
        if not n_updates <= epoch * self.per_epoch <= n_updates + n_dropped:
            raise ConfigError(
                f"--from has made {n_updates} updates in {epoch} epochs, but an epoch has {self.per_epoch} steps here, "
                "and the rate goes by updates; give the data, the batch size and the devices of that run"
            )

    def run(self) -> None:
        """Train the epochs that are left."""
        self.session.write_configuration()
        self.snapshots = self.ranks.run_on_rank_zero(self._rewind)
        with self.session.open_metrics() as self.metrics:
            if self._is_to_measure(self.place) or self._lacks_last_checkpoint():  # the run was stopped meanwhile
                self.save(self.place)
            self.loop.run(self.place, self)
        if self.stop.reason is not None:
            on = "to train on, the same command with --resume --set stop=null"
            say(f"stage 1 ends after epoch {self._finished_epochs}: {self.stop.reason}; {on}")
        for name, value in self._evaluated.items():
            if name != self.metric:
                say(f"with the average of the weights (EMA): {name} {value:.4f}")
        how = ", BatchNorm statistics as trained" if self.on.has_batch_norm else ""
        device = ["--device-target", get_context("device_target"), "--devices", str(self.ranks.group_size)]
        following = [
            "dimred",
            "train",
            "stage-2",
            self._data,
            str(self._last_checkpoint),
            *self._options_of_stage_2,
            *device,
        ]
        value = self._evaluated[self.metric]
        say(metric_line(self.metric, value))
        say_end(self.metric, self.settings.data.eval_split, value, how, self._last_checkpoint, following)

    @property
    def has_ended(self) -> bool:
        """See ``Observer``."""
        return self.stop.reason is not None

    @property
    def _finished_epochs(self) -> int:
        return self.place.epoch if self.place.done == self.per_epoch else self.place.epoch - 1

    def _rewind(self) -> CheckpointSeries:
        """Bring back to where the run goes on whatever was written on the way; the snapshots that are left."""
        prefix, folder = self._name, self.session.out / STAGE_1_CHECKPOINTS
        self.checkpoints = FullCheckpoints(folder, prefix, self.settings.checkpoints.keep)
        self.checkpoints.forget_after(self._finished_epochs)
        snapshots = CheckpointSeries(folder / SNAPSHOTS, keep=self.settings.snapshots.keep, prefix=prefix)
        snapshots.rewind(self._n_steps)
        self.session.states.forget_after(self._n_steps)
        return snapshots

    @property
    def _n_steps(self) -> int:
        return self.place.n_steps(self.per_epoch)

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
        arrays = to_arrays(parameters_to_save(self.step))
        if self._is_to_measure(place):
            self._save_state(place, arrays)  # measuring may take longer than a signal leaves time for
            self.stop.measure(place.epoch, self._n_steps, self.snapshots)
        is_due = place.epoch % self.settings.checkpoints.every_epochs == 0 or self._is_last(place)
        if place.done == self.per_epoch and is_due:
            self.ranks.run_on_rank_zero(lambda: self._save_full(place.epoch, arrays))
        self._save_state(place, arrays)

    def _is_to_measure(self, place: Place) -> bool:
        return place.done == self.per_epoch and self.stop.is_due(place.epoch)

    def _lacks_last_checkpoint(self) -> bool:
        """Whether the run is at its end, as only its resumption says, and has no full checkpoint of it."""
        if self.place.done < self.per_epoch or not self._is_last(self.place):
            return False
        return self.ranks.any(self.ranks.is_rank_zero and not self._last_checkpoint.exists())

    @property
    def _last_checkpoint(self) -> Path:
        return self.session.out / STAGE_1_CHECKPOINTS / f"{self._name}-{self._finished_epochs}_{self.per_epoch}.ckpt"

    def _save_state(self, place: Place, arrays: Mapping[str, np.ndarray]) -> None:
        self.session.save(
            self._n_steps, place, {**arrays, **self.stop.state_arrays()}, self.metrics,
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
        if self.settings.loss_scale.name != "none":
            parts |= {"loss_scale": float(result.loss_scale), "n_overflows": int(result.n_overflows)}
        return parts

    def after_epoch(self, place: Place) -> str:
        """Evaluate where that is due, and record the epoch."""
        loss = self.last["loss"]
        say(published_epoch_line(place.epoch, self.per_epoch, loss))
        started = time.perf_counter()
        self._evaluated = {self.metric: None}
        if place.epoch % self.settings.evaluate_every == 0 or self._is_last(place):
            self._evaluated = self._evaluate()
        self.metrics.write(
            epoch=place.epoch, step=self._n_steps, loss=loss, **self._evaluated, **self.last["parts"],
            **self.stop.record(place.epoch), seconds=place.seconds, evaluation_seconds=time.perf_counter() - started,
        )  # fmt: skip
        value, split = self._evaluated[self.metric], self.settings.data.eval_split
        text = None if value is None else metric_text(self.metric, value, 1)
        rate = last_rate(self.step.optimizer)
        of_all = f"{place.epoch}/{self.settings.epochs}"
        say(epoch_line(of_all, self.per_epoch, loss, rate, text and f"{split} {text}", place.seconds))
        return f"loss {loss:.3f}" + (f", {self.metric} {text}" if text else "")

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


def own_statistics(network: nn.Cell, step: TrainStep | SubspaceTrainStep) -> list[Parameter]:
    """BatchNorm's, and their moving averages; each rank has those of its own images."""
    return [*moving_statistics(network), *([] if step.ema is None else step.ema.statistics)]
