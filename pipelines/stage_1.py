"""Stage 1: train a network the ordinary way and keep a rolling series of its weights.

python -m pipelines.stage_1 DATA --config pipelines/configs/digits_stage_1.yaml --out device0_stage_1
"""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from mindspore import nn

from dimred.build import build_data, build_network, build_train_step
from dimred.config import StageOneConfig, load_config, save_config
from dimred.data.image_folder import ImageFolder, check_data
from dimred.errors import CheckpointError
from dimred.evaluate.accuracy import Accuracy
from dimred.runtime.console import progress_bar, run_program
from dimred.runtime.context import set_up
from dimred.runtime.metrics import MetricsLog
from dimred.runtime.parameters import from_arrays, to_arrays
from dimred.runtime.run_folder import run_folder
from dimred.train_step.step import TrainStep
from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.weights.series import CheckpointSeries


def stage_1(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder with train/<class>/ and val/<class>/ images.")],
    config: Annotated[Path, typer.Option(help="YAML file, see pipelines/configs.")],
    out: Annotated[Path, typer.Option(help="New folder for checkpoints and metrics.")] = Path("device0_stage_1"),
    go_on_from: Annotated[Path | None, typer.Option("--from", help="Go on from this full checkpoint.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the configuration.")] = None,
) -> None:
    """Train, and keep a rolling series of weight snapshots for the PCA."""
    settings = load_config(StageOneConfig, config, overrides or [])
    check_data(data, ["train", settings.data.eval_split], settings.model.n_classes)
    set_up(settings.seed)
    train_images = build_data(settings.data, data, "train")
    network = build_network(settings)
    step = build_train_step(settings, network, train_images.steps_per_epoch)
    first_epoch = 1 if go_on_from is None else _restore(step, go_on_from) + 1
    eval_images = build_data(settings.data, data, settings.data.eval_split)
    with run_folder(out):
        save_config(settings, out / "config.yaml")
        _Trainer(settings, out, network, step, train_images, eval_images).run(first_epoch)


class _Trainer:
    """The loop over epochs, and its rhythms: snapshots, full checkpoints, evaluation."""

    def __init__(
        self,
        settings: StageOneConfig,
        out: Path,
        network: nn.Cell,
        step: TrainStep,
        train_images: ImageFolder,
        eval_images: ImageFolder,
    ):
        self.settings = settings
        self.network = network
        self.step = step
        self.train_images = train_images
        self.eval_images = eval_images
        self.accuracy = Accuracy(network)
        prefix = settings.model.name
        self.checkpoints = FullCheckpoints(out / "checkpoint_stage_1", prefix, settings.checkpoints.keep)
        snapshots = out / "checkpoint_stage_1" / "checkpoint_pca"
        self.snapshots = CheckpointSeries(snapshots, keep=settings.snapshots.keep, prefix=prefix)
        self.metrics = MetricsLog(out / "metrics.jsonl")

    def run(self, first_epoch: int) -> None:
        last_epoch = self.settings.epochs
        accuracy = None
        with self.metrics, progress_bar() as bar:
            task = bar.add_task("stage 1", total=last_epoch, completed=first_epoch - 1, status="")
            for epoch in range(first_epoch, last_epoch + 1):
                started = time.perf_counter()
                loss = self._train_epoch(epoch)
                print(f"epoch: {epoch} step: {self.train_images.steps_per_epoch} loss is {loss}", flush=True)
                if epoch % self.settings.checkpoints.every_epochs == 0 or epoch == last_epoch:
                    self.checkpoints.save(epoch, self.train_images.steps_per_epoch, self.step)
                trained = time.perf_counter()
                if epoch % self.settings.evaluate_every == 0 or epoch == last_epoch:
                    accuracy = self.accuracy(self.eval_images.evaluation())
                    bar.update(task, status=f"accuracy {100 * accuracy:.1f} %")
                self.metrics.write(
                    epoch=epoch,
                    step=epoch * self.train_images.steps_per_epoch,
                    loss=loss,
                    accuracy=accuracy,
                    seconds=trained - started,
                    evaluation_seconds=time.perf_counter() - trained,
                )
                bar.advance(task)
        print({"Accuracy": accuracy})

    def _train_epoch(self, epoch: int) -> float:
        """One epoch with its snapshots; the loss of its last step."""
        self.step.set_train(True)
        per_epoch = self.train_images.steps_per_epoch
        snapshot_steps = self._snapshot_steps(epoch)
        batches = self.train_images.training_epoch(self.settings.seed, epoch)
        for index, (images, labels) in enumerate(batches.create_tuple_iterator(num_epochs=1), start=1):
            loss = self.step(images, labels).loss
            if index in snapshot_steps:
                weights = to_arrays(self.network.trainable_params())
                self.snapshots.append(weights, (epoch - 1) * per_epoch + index, epoch, step_in_epoch=index)
        return float(loss.asnumpy())

    def _snapshot_steps(self, epoch: int) -> set[int]:
        if epoch < self.settings.snapshots.first_epoch:
            return set()
        count, per_epoch = self.settings.snapshots.per_epoch, self.train_images.steps_per_epoch
        return {round(per_epoch * part / count) for part in range(1, count + 1)}


class FullCheckpoints:
    """Checkpoints to go on from: all parameters and the optimizer's state, the newest ``keep`` of them."""

    def __init__(self, directory: Path, prefix: str, keep: int):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.prefix = prefix
        self.keep = keep
        self._written: list[Path] = []

    def save(self, epoch: int, step_in_epoch: int, step: TrainStep) -> None:
        path = self.directory / f"{self.prefix}-{epoch}_{step_in_epoch}.ckpt"
        write_checkpoint(path, to_arrays(_to_save(step)), {"epoch": epoch})
        self._written.append(path)
        for old in self._written[: -self.keep]:
            old.unlink(missing_ok=True)
        self._written = self._written[-self.keep :]


def _to_save(step: TrainStep) -> list[Any]:
    """Every parameter but the learning rates, which the configuration gives again."""
    return [parameter for parameter in step.get_parameters() if parameter.name != "learning_rate"]


def _restore(step: TrainStep, checkpoint: Path) -> int:
    """Weights, statistics and optimizer state from a full checkpoint; the epoch it was written after."""
    arrays = read_checkpoint(checkpoint)
    if "epoch" not in arrays:
        raise CheckpointError(f"--from is {str(checkpoint)!r}, which is not a full checkpoint of stage 1")
    from_arrays(_to_save(step), arrays, f"--from {str(checkpoint)!r}")
    return int(arrays["epoch"])


if __name__ == "__main__":
    run_program(stage_1)
