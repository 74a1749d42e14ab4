"""Stage 2: search in the small subspace that stage 1's snapshots span.

python -m pipelines.stage_2 DATA WEIGHTS [PCA_MAT] --config pipelines/configs/digits_stage_2.yaml
"""

import json
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from mindspore import Tensor, nn

from dimred.build import build_data, build_network, build_search_step
from dimred.config import StageTwoConfig, load_config, save_config
from dimred.data.image_folder import check_data
from dimred.errors import ConfigError, NothingAcceptedError
from dimred.evaluate.accuracy import Accuracy
from dimred.evaluate.batch_norm import reestimate_batch_norm
from dimred.runtime.console import progress_bar, run_program
from dimred.runtime.context import set_up
from dimred.runtime.metrics import MetricsLog
from dimred.runtime.parameters import from_arrays, to_arrays
from dimred.runtime.run_folder import run_folder
from dimred.search.cell import SubspaceTrainStep
from dimred.search.result import SearchResult
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.path import make_path
from dimred.subspace.pca import fit_basis
from dimred.weights.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries
from dimred.weights.whole_file import write_whole


def stage_2(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder with train/<class>/ and val/<class>/ images.")],
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", help="Stage 1's last full checkpoint.")],
    config: Annotated[Path, typer.Option(help="YAML file, see pipelines/configs.")],
    pca_mat: Annotated[
        Path | None,
        typer.Argument(metavar="[PCA_MAT]", help="Basis; fitted on checkpoint_pca/ beside WEIGHTS if not given."),
    ] = None,
    out: Annotated[Path, typer.Option(help="New folder for checkpoints and metrics.")] = Path("device0_stage_2"),
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the configuration.")] = None,
) -> None:
    """Search in the subspace of stage 1's snapshots, from their mean or from stage 1's last weights."""
    settings = load_config(StageTwoConfig, config, overrides or [])
    check_data(data, _splits(settings), settings.model.n_classes)
    arrays = read_checkpoint(weights)
    set_up(settings.seed)
    network = build_network(settings)
    from_arrays(network.get_parameters(), arrays, f"WEIGHTS {str(weights)!r}")
    with run_folder(out):
        basis = _basis(settings, network, pca_mat, weights.parent / "checkpoint_pca", out)
        run = _Run(settings, out, network, data)
        search_step = build_search_step(settings, network, basis, run.search_images.steps_per_epoch)
        run.start(basis)
        save_config(settings, out / "config.yaml")
        run.search(search_step, basis)
        run.finish(basis)


def _splits(settings: StageTwoConfig) -> list[str]:
    """The splits that this run reads."""
    chooser = {"val"} if settings.keep_best else set()
    return sorted({"train", settings.search_split, settings.data.eval_split} | chooser)


def _basis(settings: StageTwoConfig, network: nn.Cell, given: Path | None, snapshots: Path, out: Path) -> SubspaceBasis:
    """The basis that was given, or one fitted on the snapshots beside the weights."""
    if given is not None:
        return load_basis(given, network=network)
    series, kind = CheckpointSeries.open(snapshots), "snapshots" if settings.search == "average" else "pca"
    return fit_basis(series, settings.n_components, out=out / "pca_mat.npy", kind=kind, network=network)


class _Run:
    """The verbs of stage 2: start, search, finish; what they measure ends in ``result.json``."""

    def __init__(self, settings: StageTwoConfig, out: Path, network: nn.Cell, data: Path):
        self.settings = settings
        self.network = network
        self.result_file = out / "result.json"
        self.metrics_file = out / "metrics.jsonl"
        self.checkpoints = out / "checkpoint_stage_2"
        images = {split: build_data(settings.data, data, split) for split in _splits(settings)}
        self.train_images = images["train"]
        self.val_images = images["val"] if settings.keep_best else None
        self.eval_images = images[settings.data.eval_split]
        self.search_images = images[settings.search_split]
        self.accuracy = Accuracy(network)
        self.result: dict[str, Any] = {"start": settings.start, "epochs": settings.epochs}
        self.val_accuracy: dict[str, float] = {}

    def start(self, basis: SubspaceBasis) -> None:
        """Put the network where the search begins."""
        if self.settings.start == "mean":
            if basis.mean is None or basis.layout is None:
                raise ConfigError(
                    "start is 'mean', but the basis file has no mean of the snapshots beside it; use start=last"
                )
            mean = basis.layout.unflatten(basis.mean)
            from_arrays(self.network.trainable_params(), mean, "the mean of the snapshots")
            self._reestimate()
        elif self.settings.start != "last":
            arrays = read_checkpoint(self.settings.start)
            from_arrays(self.network.get_parameters(), arrays, f"start {self.settings.start!r}")
        self.checkpoints.mkdir()
        self.result["accuracy_start"] = self._take_stock("start")
        print(f"stage 2 starts from {self.settings.start!r}: accuracy {self.result['accuracy_start']:.4f}", flush=True)

    def search(self, step: SubspaceTrainStep, basis: SubspaceBasis) -> None:
        """The epochs; a checkpoint after each, and with alpha = 0 the path: k numbers for each step."""
        started = time.perf_counter()
        self.result["accuracy_by_epoch"] = {}
        start = WeightLayout.from_network(self.network).flatten(to_arrays(self.network.trainable_params()))
        found: list[SearchResult] = []
        per_epoch = self.search_images.steps_per_epoch
        with MetricsLog(self.metrics_file) as metrics, progress_bar() as bar:
            task = bar.add_task("stage 2", total=self.settings.epochs * per_epoch, status="")
            for epoch in range(1, self.settings.epochs + 1):
                try:
                    for result in self._steps(step, epoch):
                        found.append(result)
                        metrics.write(epoch=epoch, step=len(found), **_telemetry(result))
                        bar.update(task, advance=1, status=f"loss {result.loss_after:.4f}")
                except NothingAcceptedError as stop:
                    self.result["stopped"] = str(stop)
                    print(f"the search stops in epoch {epoch}: {stop}", flush=True)
                    break
                print(f"epoch: {epoch} step: {per_epoch} loss is {found[-1].loss_after}", flush=True)
                print(_epoch_line(found[-per_epoch:]), flush=True)
                self.result["accuracy_by_epoch"][str(epoch)] = self._take_stock(str(epoch))
                if self.settings.alpha == 0 and self.settings.weight_decay == 0:
                    path = make_path([result.subspace_step for result in found], start, basis)
                    path.save(self.checkpoints / "subspace_path.json")
        self.result |= {
            "steps": len(found),
            "accepted_steps": sum(result.accepted for result in found),
            "trials": sum(result.n_trials for result in found),
            "gradients": sum(result.n_gradients for result in found),
            "search_seconds": time.perf_counter() - started,
        }

    def _steps(self, step: SubspaceTrainStep, epoch: int) -> Iterator[SearchResult]:
        step.set_train(True)
        batches = self.search_images.training_epoch(self.settings.seed, _EPOCHS_BEFORE + epoch)
        for images, labels in batches.create_tuple_iterator(num_epochs=1):
            yield step(images, labels)

    def finish(self, basis: SubspaceBasis) -> None:
        """The network to keep, both its accuracies, the result file."""
        if self.settings.keep_best:
            self._keep_best()
        self.result["accuracy"] = self._evaluate()
        if self.settings.reestimate_batch_norm:
            self._reestimate()
            self.result["accuracy_reestimated"] = self._evaluate()
            print(f"with re-estimated BatchNorm statistics: {self.result['accuracy_reestimated']:.4f}")
        write_checkpoint(self._checkpoint("final"), to_arrays(self.network.get_parameters()))
        self.result["basis"] = {
            "n_snapshots": len(basis.snapshots),
            "n_components": self.settings.n_components,
            "n_weights": basis.n_weights,
            "explained_variance": explained_share(basis, self.settings.n_components),
        }
        write_whole(self.result_file, json.dumps(self.result, indent=2) + "\n")
        print({"Accuracy": self.result["accuracy"]})

    def _take_stock(self, point: str) -> float:
        """Save a checkpoint, note the accuracy on ``val`` to choose by, and return the one on the evaluation split."""
        write_checkpoint(self._checkpoint(point), to_arrays(self.network.get_parameters()))
        if self.val_images is not None:
            self.val_accuracy[point] = self.accuracy(self.val_images.evaluation())
        return self._evaluate()

    def _keep_best(self) -> None:
        """Go back to the point with the best accuracy on ``val``; of equal ones, the earliest."""
        kept = max(self.val_accuracy, key=lambda point: self.val_accuracy[point])
        from_arrays(self.network.get_parameters(), read_checkpoint(self._checkpoint(kept)), f"checkpoint {kept}")
        self.result |= {"kept": kept, "val_accuracy": self.val_accuracy}
        points = ", ".join(f"{point} {accuracy:.4f}" for point, accuracy in self.val_accuracy.items())
        print(f"kept: {kept}, the best on 'val' (of equal ones the earliest): {points}", flush=True)

    def _checkpoint(self, point: str) -> Path:
        steps = f"{point}_{self.search_images.steps_per_epoch}" if point.isdigit() else point
        return self.checkpoints / f"{self.settings.model.name}-{steps}.ckpt"

    def _evaluate(self) -> float:
        return self.accuracy(self.eval_images.evaluation())

    def _reestimate(self) -> None:
        batches = self._training_batches()
        reestimate_batch_norm(self.network, islice(batches, self.settings.reestimate_batches))

    def _training_batches(self) -> Iterator[tuple[Tensor, ...]]:
        """Training batches without end, in an order that no epoch of the search uses."""
        for epoch in count(1):
            batches = self.train_images.training_epoch(self.settings.seed, _EPOCHS_BEFORE - epoch)
            yield from batches.create_tuple_iterator(num_epochs=1)


_EPOCHS_BEFORE = 1_000_000  # stage 2 counts its epochs from here, so that it draws no order that stage 1 has drawn


def explained_share(basis: SubspaceBasis, n_components: int) -> float | None:
    """Share of the snapshots' variance that the leading components explain; None where the file does not say."""
    if basis.explained_variance_ratio is None:
        return None
    return float(np.sum(basis.explained_variance_ratio[:n_components]))


def _epoch_line(found: Sequence[SearchResult]) -> str:
    """An epoch for people."""
    inside = 100 * float(np.nanmean([result.captured_share for result in found]))
    return (
        f"  accepted {sum(result.accepted for result in found)} of {len(found)} steps, "
        f"{np.mean([result.n_trials for result in found]):.1f} trials a step; {inside:.1f} % of the gradient inside "
        f"the subspace; moved {sum(result.moved_inside for result in found):.3g} inside it, "
        f"{sum(result.moved_outside for result in found):.3g} outside"
    )


def _telemetry(found: SearchResult) -> dict[str, Any]:
    """One record of ``metrics.jsonl``: the whole result, as numbers and words."""
    return found._asdict() | {
        "loss": float(found.loss.asnumpy()),
        "outcome": found.outcome.name.lower(),
        "subspace_step": found.subspace_step.tolist(),
    }


if __name__ == "__main__":
    run_program(stage_2)
