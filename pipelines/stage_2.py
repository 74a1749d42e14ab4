"""Stage 2: search in the small subspace that stage 1's snapshots span.

python -m dimred.pipelines.stage_2 DATA WEIGHTS [PCA_MAT] --config pipelines/configs/digits_stage_2.yaml
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from mindspore import nn

from dimred.build import SEARCH_EPOCHS_FROM, build_data, build_network, build_search_step, check_ranks
from dimred.build.before import basis_kind, check_stage_2
from dimred.config import StageTwoConfig, config_text, load_config
from dimred.console import AllowChange, Resume, run_program, say
from dimred.data.image_folder import ImageFolder
from dimred.data.own_dataset import OwnDataset
from dimred.data.reading import batches_after
from dimred.distributed.ranks import Ranks
from dimred.distributed.share import share_basis, share_state
from dimred.errors import NothingAcceptedError
from dimred.evaluate.checkpoint_selection import CheckpointSelection
from dimred.evaluate.initial_weights import Start
from dimred.evaluate.on_splits import OnSplits
from dimred.files.atomic import atomic_write, retry
from dimred.files.checksummed_json import write_checksummed
from dimred.launch.heartbeat import Heartbeat
from dimred.launch.stage_bar import StageBar
from dimred.run.device import set_up
from dimred.run.faults import translate_errors
from dimred.run.folder import CONFIG, run_folder
from dimred.run.metrics import MetricsLog, cut_metrics, finite, read_metrics
from dimred.run.native_stderr import redirect_native_stderr
from dimred.run.resume_check import refuse_changes
from dimred.run.signals import StopSignals
from dimred.run.states import RunStates, read_state
from dimred.run.versions import write_versions
from dimred.search.basis_check import Basis
from dimred.search.result import epoch_line, state_arrays, state_from_arrays, telemetry, totals
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.fit import fit_basis
from dimred.subspace.path import make_path
from dimred.train_step.network_state import moving_statistics
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries


def stage_2(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder with train/<class>/ and val/<class>/ images.")],
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", help="Stage 1's last full checkpoint.")],
    config: Annotated[Path, typer.Option(help="YAML file, see pipelines/configs.")],
    pca_mat: Annotated[
        Path | None,
        typer.Argument(metavar="[PCA_MAT]", help="Basis; fitted on checkpoint_pca/ beside WEIGHTS if not given."),
    ] = None,
    out: Annotated[Path, typer.Option(help="New folder for checkpoints and metrics.")] = Path("device0_stage_2"),
    resume: Resume = False,
    allow_change: AllowChange = None,
    device_target: Annotated[Literal["CPU", "Ascend"], typer.Option(help="What to compute on.")] = "CPU",
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value, over the configuration.")] = None,
) -> None:
    """Search in the subspace of stage 1's snapshots, from their best mean or from stage 1's last weights."""
    settings = load_config(StageTwoConfig, config, overrides or [])
    ranks = set_up(settings.seed, device_target, all_reduce_split=settings.all_reduce_split)
    network = build_network(settings)
    check_stage_2(settings, network, data, _splits(settings), weights, pca_mat, out, resume, ranks)
    images = {
        split: build_data(settings.data, data, split, ranks, settings.accumulation) for split in _splits(settings)
    }
    with (
        run_folder(out, resume=resume),
        redirect_native_stderr(out / "mindspore.log"),
        StopSignals() as signals,
        translate_errors(RunStates(out)),
    ):
        check_ranks(ranks, settings, images[settings.search_split])
        ranks.broadcast(list(network.get_parameters()))
        snapshots = weights.parent / "checkpoint_pca"
        basis = ranks.run_on_rank_zero(lambda: _basis(settings, network, pca_mat, snapshots, out))
        shared = share_basis(basis, ranks, lambda path: load_basis(path, network=network, verify=False))
        run = _Run(settings, out, network, images, basis, shared, ranks, signals)
        sources = {"data": data, "weights": weights, "basis": basis.path if basis else None}
        run.result["sources"] = {name: path and str(path.resolve()) for name, path in sources.items()}
        if not run.restore(allow_change or []):
            run.put_start(snapshots)
        atomic_write(out / CONFIG, config_text(settings))
        write_versions(out)
        run.search()
        run.finish()


def _splits(settings: StageTwoConfig) -> list[str]:
    """The splits that this run reads."""
    chooser = {"val"} if settings.keep_best or settings.start == "best" else set()
    return sorted({"train", settings.search_split, settings.data.eval_split} | chooser)


def _basis(settings: StageTwoConfig, network: nn.Cell, given: Path | None, snapshots: Path, out: Path) -> SubspaceBasis:
    """The basis that was given, or one fitted on the snapshots beside the weights."""
    if given is not None:
        return load_basis(given, network=network)
    series, kind = CheckpointSeries.open(snapshots), basis_kind(settings)
    return fit_basis(series, settings.n_components, out=out / "pca_mat.npy", kind=kind, network=network)


class _Run:
    """The verbs of stage 2: start or restore, search, finish; what they measure ends in ``result.json``."""

    def __init__(
        self,
        settings: StageTwoConfig,
        out: Path,
        network: nn.Cell,
        images: dict[str, ImageFolder | OwnDataset],
        basis: SubspaceBasis | None,
        shared: Basis,
        ranks: Ranks,
        signals: StopSignals,
    ):
        self.settings = settings
        self.ranks = ranks
        self.network = network
        self.basis = basis
        self.signals = signals
        self.images = images
        self.result_file = out / "result.json"
        self.metrics_file = out / "metrics.jsonl"
        self.tensorboard = out / "tensorboard" if settings.tensorboard else None
        self.states = RunStates(out)
        self.heartbeat = Heartbeat()
        self.search_images = images[settings.search_split]
        self.on = OnSplits(network, images, seed=settings.seed, n_batches=settings.reestimate_batches, ranks=ranks)
        val_loss = self._val_loss if settings.keep_best else None
        self.step = build_search_step(settings, network, shared, self.search_images.steps_per_epoch, ranks)
        self.ema = self.step.ema
        self.points = CheckpointSelection(
            out / "checkpoint_stage_2", settings.model.file_prefix, self._parameters, network, ranks, val_loss
        )
        self.result: dict[str, Any] = {"start": settings.start, "epochs": settings.epochs, "accuracy_by_epoch": {}}
        self.epoch, self.done = 0, 0  # the epoch to go on with (0: the start), and how many of its steps are done
        self.seconds = 0.0
        self.records: list[dict[str, Any]] = []
        self.metrics_mark: dict[str, Any] | None = None
        self.identity = settings.model_dump(mode="json") | {"--devices": ranks.group_size}
        words = f"{self.search_images.n_images} images in {len(self.search_images.classes)} classes"
        self.identity |= {"DATA": words, "PCA_MAT": basis.digest if basis else None}

    def restore(self, allowed: list[str]) -> bool:
        """Take up the newest state in rank 0's folder; whether there is one."""
        found = self.ranks.run_on_rank_zero(lambda: self.states.newest(say))
        found = share_state(found, self.ranks, read_state)
        if found is None:
            return False
        progress = found.progress
        if self.ranks.is_rank_zero:
            refuse_changes(progress["run"], self.identity, allowed)
        from_arrays(self._parameters(), found.arrays, str(found.path))
        searched = {name.removeprefix(_SEARCH): value for name, value in found.arrays.items() if _SEARCH in name}
        self.step.state = state_from_arrays(searched, self.step.state)
        self.epoch, self.done, self.seconds = progress["epoch"], progress["done"], progress["seconds"]
        self.result |= progress["result"]
        self.points.losses, self.metrics_mark = progress["losses"], progress["metrics"]
        say(f"going on after step {self.done} of epoch {self.epoch}, from {found.path}")
        return True

    def _parameters(self) -> list[Any]:
        """The network's, and those of the step's parts that remember something: the EMA and the loss scale."""
        return list(self.step.get_parameters())

    def put_start(self, snapshots: Path) -> None:
        """Put the network where the search begins."""
        start = Start(self.network, self.ranks, self.on.reestimate, self._val_loss)
        self.result |= start.put(self.settings.start, self.basis, snapshots)
        if self.ema is not None:
            self.ema.restart()
            self.result["ema_accuracy_by_point"] = {}

    def search(self) -> None:
        """The start and the epochs that are left; a checkpoint after each."""
        cut_metrics(self.metrics_file, self.metrics_mark, own=self.ranks.is_rank_zero)
        with MetricsLog(self.metrics_file, self.tensorboard) as self.metrics:
            self.records = read_metrics(self.metrics_file)
            self.states.forget_after(len(self.records))
            if self.epoch == 0:
                self.result["accuracy_start"] = self._take_stock("start")
                say(f"stage 2 starts from {self.settings.start!r}: accuracy {self.result['accuracy_start']:.4f}")
                self.epoch = 1
                self._save()
            steps = self.settings.epochs * self.search_images.steps_per_epoch
            with StageBar("stage 2", steps, len(self.records)) as bar:
                self._search_epochs(bar)

    def _search_epochs(self, bar: StageBar) -> None:
        per_epoch = self.search_images.steps_per_epoch
        while self.epoch <= self.settings.epochs:
            try:
                self._search_epoch(lambda: bar.step(self._status()))
            except NothingAcceptedError as stop:
                self.result["stopped"] = str(stop)
                say(f"the search stops in epoch {self.epoch}: {stop}")
                break
            say(f"epoch: {self.epoch} step: {per_epoch} loss is {self.records[-1]['loss_after']}")
            say(epoch_line(self.records[-per_epoch:]))
            self.result["accuracy_by_epoch"][str(self.epoch)] = self._take_stock(str(self.epoch))
            bar.status(self._status())
            if self.settings.alpha == 0 and self.settings.weight_decay == 0 and self.basis is not None:
                self._save_path(self.basis)
            self.epoch, self.done = self.epoch + 1, 0

    def _status(self) -> str:
        """The last step's loss, and the accuracy that was measured last."""
        accuracy = [self.result["accuracy_start"], *self.result["accuracy_by_epoch"].values()][-1]
        return f"loss {self.records[-1]['loss_after']:.4f}, accuracy {100 * accuracy:.1f} %"

    def _take_stock(self, point: str) -> float:
        """Save the point, and return its accuracy on the evaluation split."""
        self._average_statistics()
        self.points.save(point, self._point(point))
        if self.ema is not None:
            with self.ema.in_place():
                self.result["ema_accuracy_by_point"][point] = self._evaluate()
        return self._evaluate()

    def _search_epoch(self, after_step: Callable[[], None]) -> None:
        """The steps that are left of an epoch; then the state to go on from."""
        per_epoch, every = self.search_images.steps_per_epoch, self.settings.save_every_steps
        if self.done == per_epoch:
            return
        self.step.set_train(True)
        order, started, before = SEARCH_EPOCHS_FROM + self.epoch, time.perf_counter(), self.seconds
        with self.signals.held():
            make = partial(self.search_images.training_epoch, self.settings.seed, order)
            for number, batch in self.heartbeat.around(batches_after(make, self.done, say), len(self.records)):
                found = self.step(*batch)
                self.done, self.seconds = number, before + time.perf_counter() - started
                step = len(self.records) + 1
                self.records.append(self.metrics.write(epoch=self.epoch, step=step, **telemetry(found)))
                after_step()
                stop = self.signals.agreed(self.ranks)
                if number == per_epoch or stop or (every and number % every == 0):
                    self._save()
                if stop:
                    return

    def _save(self) -> None:
        """The state to go on from."""
        self._average_statistics()
        arrays = to_arrays(self._parameters())
        arrays |= {_SEARCH + name: value for name, value in state_arrays(self.step.state).items()}
        progress = {"epoch": self.epoch, "done": self.done, "seconds": self.seconds, "run": self.identity}
        progress |= {"result": self.result, "losses": self.points.losses, "metrics": self.metrics.mark()}
        self.ranks.run_on_rank_zero(lambda: retry(lambda: self.states.save(len(self.records), arrays, progress)))

    def _average_statistics(self) -> None:
        """BatchNorm's, and their moving averages, over the ranks."""
        self.ranks.all_reduce_mean(
            [*moving_statistics(self.network), *([] if self.ema is None else self.ema.statistics)]
        )

    def _save_path(self, basis: SubspaceBasis) -> None:
        """k numbers for each step, from which ``dimred rebuild`` makes its network."""
        start = WeightLayout.from_network(self.network).flatten(self.points.read("start"))
        steps = [np.array(record["subspace_step"]) for record in self.records]
        make_path(steps, start, basis).save(self.points.folder / "subspace_path.json")

    def finish(self) -> None:
        """The network to keep, both its accuracies, the result file."""
        self.result |= totals(self.records) | {"search_seconds": self.seconds}
        if self.settings.keep_best:
            self.result |= self.points.keep_best(self._point)
        self.result["accuracy"] = self._evaluate()
        if self.settings.reestimate_batch_norm:
            self.on.reestimate()
            self.result["accuracy_reestimated"] = self._evaluate()
            say(f"with re-estimated BatchNorm statistics: {self.result['accuracy_reestimated']:.4f}")
        self.points.save("final")
        if self.basis is not None:
            self.result["basis"] = self.basis.in_short(self.settings.n_components)
            write_checksummed(self.result_file, finite(self.result))
        say(str({"Accuracy": self.result["accuracy"]}))

    def _point(self, point: str) -> str:
        """The name of a point's file."""
        return f"{point}_{self.search_images.steps_per_epoch}" if point.isdigit() else point

    def _evaluate(self) -> float:
        self.heartbeat.at("evaluating after", len(self.records))
        return self.on.accuracy(self.settings.data.eval_split)

    def _val_loss(self) -> float:
        return self.on.loss("val")


_SEARCH = "search:"  # begins the names of the search's own arrays in a state

if __name__ == "__main__":
    run_program(stage_2)
