"""Stage 1: train a network the ordinary way and keep a rolling series of its weights.

python -m dimred.pipelines.stage_1 DATA --config pipelines/configs/digits_stage_1.yaml --out device0_stage_1
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from mindspore import nn

from dimred.build import build_data, build_network, build_train_step, check_ranks
from dimred.build.before import check_stage_1
from dimred.build.cost import snapshots_in_the_end
from dimred.config import StageOneConfig, StageTwoConfig, config_text, load_config
from dimred.console import AllowChange, Resume, run_program, say
from dimred.data.batches import Batches, batches_after
from dimred.distributed.ranks import Ranks
from dimred.distributed.share import share_state
from dimred.errors import DataError
from dimred.evaluate.classification import Accuracy
from dimred.files.atomic import atomic_write, retry
from dimred.launch.heartbeat import Heartbeat
from dimred.launch.stage_bar import StageBar
from dimred.run.device import set_up
from dimred.run.divergence import DivergenceDetector
from dimred.run.faults import translate_errors
from dimred.run.folder import CONFIG, run_folder
from dimred.run.full_checkpoints import FullCheckpoints
from dimred.run.metrics import MetricsLog, cut_metrics
from dimred.run.native_stderr import redirect_native_stderr
from dimred.run.resume_check import refuse_changes
from dimred.run.signals import StopSignals
from dimred.run.states import RunStates, check_finite, read_state
from dimred.run.versions import write_versions
from dimred.train_step.network_state import moving_statistics
from dimred.train_step.step import StepResult, TrainStep
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.weights.series import CheckpointSeries


def stage_1(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder with train/<class>/ and val/<class>/ images.")],
    config: Annotated[Path, typer.Option(help="YAML file, see pipelines/configs.")],
    out: Annotated[Path, typer.Option(help="New folder for checkpoints and metrics.")] = Path("device0_stage_1"),
    go_on_from: Annotated[
        Path | None, typer.Option("--from", help="Begin a new run with this full checkpoint of another run.")
    ] = None,
    resume: Resume = False,
    allow_change: AllowChange = None,
    device_target: Annotated[Literal["CPU", "Ascend"], typer.Option(help="What to compute on.")] = "CPU",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the configuration.")] = None,
) -> None:
    """Train, and keep a rolling series of weight snapshots for the PCA."""
    settings = load_config(StageOneConfig, config, overrides or [])
    ranks = set_up(settings.seed, device_target, all_reduce_split=settings.all_reduce_split)
    network = build_network(settings)
    first = check_stage_1(settings, network, data, out, go_on_from, resume)
    train_images = build_data(settings.data, data, "train", ranks, settings.accumulation)
    check_ranks(ranks, settings, train_images)
    n_snapshots, usual = snapshots_in_the_end(settings), StageTwoConfig().n_components
    if 0 < n_snapshots <= usual:
        say(f"this run keeps {n_snapshots} snapshots; {usual} directions, stage 2's default, need {usual + 1}")
    step = build_train_step(settings, network, train_images.steps_per_epoch, ranks)
    eval_images = build_data(settings.data, data, settings.data.eval_split, ranks)
    with run_folder(out, resume=resume), redirect_native_stderr(out / "mindspore.log"), StopSignals() as signals:
        trainer = _Trainer(settings, out, network, step, train_images, eval_images, ranks, signals)
        trainer.restore(first, allow_change or [])
        atomic_write(out / CONFIG, config_text(settings))
        write_versions(out)
        with translate_errors(trainer.states):
            trainer.rewind()
            trainer.run()


class _Trainer:
    """The loop over epochs, and its rhythms: snapshots, states, full checkpoints, evaluation."""

    def __init__(
        self,
        settings: StageOneConfig,
        out: Path,
        network: nn.Cell,
        step: TrainStep,
        train_images: Batches,
        eval_images: Batches,
        ranks: Ranks,
        signals: StopSignals,
    ):
        self.settings = settings
        self.out = out
        self.network = network
        self.step = step
        self.train_images = train_images
        self.eval_images = eval_images
        self.ranks = ranks
        self.signals = signals
        self.statistics = [*moving_statistics(network), *([] if step.ema is None else step.ema.statistics)]
        self.accuracy = Accuracy(network, ranks)
        self.states = RunStates(out)
        self.watch = DivergenceDetector()
        self.heartbeat = Heartbeat()
        self.epoch, self.done = 1, 0  # the epoch to go on with, and how many of its steps are done
        self.last: dict[str, Any] = {"loss": None, "parts": {}, "seconds": 0.0}
        self.metrics_mark: dict[str, Any] | None = None
        data = f"{train_images.n_images} images in {len(train_images.classes)} classes"
        self.identity = settings.model_dump(mode="json") | {"DATA": data}
        self.identity |= {"--devices": ranks.group_size}

    def restore(self, first: tuple[dict[str, np.ndarray], int] | None, allowed: list[str]) -> None:
        """Take up the newest state in the folder; without one ``first``, a full checkpoint; or begin."""
        found = self.ranks.run_on_rank_zero(lambda: self.states.newest(say))
        found = share_state(found, self.ranks, read_state)
        if found is not None:
            if self.ranks.is_rank_zero:
                refuse_changes(found.progress["run"], self.identity, allowed)
            from_arrays(_to_save(self.step), found.arrays, str(found.path))
            self.epoch, self.done, self.last = (found.progress[key] for key in ("epoch", "done", "last"))
            self.watch = DivergenceDetector(found.progress["first_loss"])
            self.metrics_mark = found.progress["metrics"]
            say(f"going on after step {self.done} of epoch {self.epoch}, from {found.path}")
        elif first is not None:
            arrays, epoch = first
            from_arrays(_to_save(self.step), arrays, "--from")
            self.epoch = epoch + 1

    def rewind(self) -> None:
        """Bring everything that is written on the way back to where the run goes on."""
        self.ranks.run_on_rank_zero(self._rewind_files)
        cut_metrics(self.out / "metrics.jsonl", self.metrics_mark, own=self.ranks.is_rank_zero)
        tensorboard = self.out / "tensorboard" if self.settings.tensorboard else None
        self.metrics = MetricsLog(self.out / "metrics.jsonl", tensorboard)

    def _rewind_files(self) -> None:
        prefix, folder = self.settings.model.file_prefix, self.out / "checkpoint_stage_1"
        self.checkpoints = FullCheckpoints(folder, prefix, self.settings.checkpoints.keep)
        self.checkpoints.forget_after(self.epoch - 1 if self.done < self.train_images.steps_per_epoch else self.epoch)
        self.snapshots = CheckpointSeries(folder / "checkpoint_pca", keep=self.settings.snapshots.keep, prefix=prefix)
        self.snapshots.rewind(self._n_steps)
        self.states.forget_after(self._n_steps)

    @property
    def _n_steps(self) -> int:
        return (self.epoch - 1) * self.train_images.steps_per_epoch + self.done

    def run(self) -> None:
        """The epochs that are left."""
        steps, status = self.settings.epochs * self.train_images.steps_per_epoch, ""
        with self.metrics, StageBar("stage 1", steps, self._n_steps) as bar:
            accuracy: float | None = None
            averaged: dict[str, float] = {}
            while self.epoch <= self.settings.epochs:
                self._train_epoch(bar.step)
                started = time.perf_counter()
                accuracy, averaged = None, {}
                if self.epoch % self.settings.evaluate_every == 0 or self.epoch == self.settings.epochs:
                    accuracy = self._evaluate()
                    averaged = self._averaged_accuracy()
                    status = f", accuracy {100 * accuracy:.1f} %"
                bar.status(f"loss {self.last['loss']:.3f}{status}")
                self.metrics.write(
                    epoch=self.epoch,
                    step=self._n_steps,
                    loss=self.last["loss"],
                    accuracy=accuracy,
                    **averaged,
                    **self.last["parts"],
                    seconds=self.last["seconds"],
                    evaluation_seconds=time.perf_counter() - started,
                )
                self.epoch, self.done, self.last["seconds"] = self.epoch + 1, 0, 0.0
        for name, value in averaged.items():
            say(f"with the average of the weights (EMA): {name} {value:.4f}")
        say(str({"Accuracy": accuracy}))

    def _evaluate(self) -> float:
        self.heartbeat.at("evaluating after", self._n_steps)
        return self.accuracy(self.eval_images.evaluation())

    def _averaged_accuracy(self) -> dict[str, float]:
        """Accuracy with the EMA in place of the raw weights, if there is one."""
        if self.step.ema is None:
            return {}
        with self.step.ema.in_place():
            return {"ema_accuracy": self._evaluate()}

    def _parts(self, result: StepResult) -> dict[str, float]:
        """What the step's parts report of a step, where they are on."""
        parts = {}
        if self.settings.clipping.norm or self.settings.clipping.value:
            parts["grad_norm"] = float(result.grad_norm)
        if self.settings.loss_scale.kind != "none":
            parts |= {"loss_scale": float(result.loss_scale), "n_overflows": int(result.n_overflows)}
        return parts

    def _train_epoch(self, after_step: Callable[[], None]) -> None:
        """The steps that are left of an epoch, with its snapshots; then the state to go on from."""
        per_epoch, every = self.train_images.steps_per_epoch, self.settings.save_every_steps
        if self.done == per_epoch:
            return
        self.step.set_train(True)
        snapshot_steps = self._snapshot_steps()
        epoch, started = self.epoch, time.perf_counter()
        before = self.last["seconds"]
        with self.signals.held():
            batches = batches_after(lambda: self.train_images.training_epoch(self.settings.seed, epoch), self.done, say)
            for number, batch in self.heartbeat.around(self._saving(batches), self._n_steps):
                result = self.step(*batch)
                self.done = number
                after_step()
                self.watch.see(result.loss, self._n_steps)
                if number in snapshot_steps:
                    self._take_snapshot()
                stop = self.signals.agreed(self.ranks)
                if number == per_epoch or stop or (every and number % every == 0):
                    loss = float(self.ranks.sum([result.loss.asnumpy()])[0]) / self.ranks.group_size
                    seconds = before + time.perf_counter() - started
                    self.last = {"loss": loss, "parts": self._parts(result), "seconds": seconds}
                    self._save()
                if stop:
                    return
        print(f"epoch: {epoch} step: {per_epoch} loss is {self.last['loss']}", flush=True)

    def _saving(self, batches: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """The batches; where they can't be read any more, what was trained so far is saved."""
        try:
            yield from batches
        except DataError:
            self._save()
            raise

    def _take_snapshot(self) -> None:
        weights = to_arrays(self.network.trainable_params())
        check_finite(weights, self._n_steps)
        self.ranks.run_on_rank_zero(lambda: retry(lambda: self._append(weights)))

    def _append(self, weights: dict[str, np.ndarray]) -> None:
        self.snapshots.append(weights, self._n_steps, self.epoch, step_in_epoch=self.done)

    def _save(self) -> None:
        """The state to go on from; at the end of some epochs a full checkpoint before it."""
        self.ranks.all_reduce_mean(self.statistics)
        arrays = to_arrays(_to_save(self.step))
        progress = {"epoch": self.epoch, "done": self.done, "last": self.last, "run": self.identity}
        progress |= {"metrics": self.metrics.mark(), "first_loss": self.watch.first_loss}
        self.ranks.run_on_rank_zero(lambda: self._write(arrays, progress))

    def _write(self, arrays: dict[str, np.ndarray], progress: dict[str, Any]) -> None:
        at_end = self.done == self.train_images.steps_per_epoch
        if at_end and (self.epoch % self.settings.checkpoints.every_epochs == 0 or self.epoch == self.settings.epochs):
            check_finite(arrays, self._n_steps)
            retry(lambda: self.checkpoints.save(self.epoch, self.done, arrays))
        retry(lambda: self.states.save(self._n_steps, arrays, progress))

    def _snapshot_steps(self) -> set[int]:
        if self.epoch < self.settings.snapshots.first_epoch:
            return set()
        count, per_epoch = self.settings.snapshots.per_epoch, self.train_images.steps_per_epoch
        return {round(per_epoch * part / count) for part in range(1, count + 1)}


def _to_save(step: TrainStep) -> list[Any]:
    """Every parameter but the learning rates, which the configuration gives again."""
    return [parameter for parameter in step.get_parameters() if parameter.name != "learning_rate"]


if __name__ == "__main__":
    run_program(stage_1)
