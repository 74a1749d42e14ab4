"""Trainings and searches from one stage 1, in memory: what the methods of a comparison are made of."""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import nn

from dimred.build.comparable import SPLITS, checkpoint_of, on_one_process, ranks_of
from dimred.build.continuation import build_continued_optimizer, read_continuation
from dimred.build.loss_and_metric import build_scores
from dimred.build.network_and_data import build_data, build_network, check_ranks
from dimred.build.preflight import basis_kind
from dimred.build.steps import build_search_step, build_train_step
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.console import note
from dimred.data.batches import SEARCH_EPOCHS_FROM
from dimred.distributed.ranks import ALONE
from dimred.errors import FaultError, NothingAcceptedError
from dimred.evaluate.averages import SnapshotAverages
from dimred.evaluate.evaluator import Cost, Evaluator, OnSplits
from dimred.evaluate.selection import Selection
from dimred.evaluate.window_search import search_windows, window_grid
from dimred.files.run_names import SNAPSHOTS, STAGE_1_CHECKPOINTS
from dimred.run.loop import CountPasses, EpochLoop, Place
from dimred.run.training import parameters_to_save
from dimred.search.basis_check import Basis
from dimred.search.step import SubspaceTrainStep
from dimred.subspace.basis import SubspaceBasis
from dimred.subspace.fit import fit_basis
from dimred.train_step.cells import free_graphs
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.weights.checkpoint_io import read_checkpoint
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries

Arrays = dict[str, np.ndarray]


class Found(NamedTuple):
    """What a training found.

    Attributes:
        arrays: parameters and statistics of the point that ``val`` chose.
        kept: which point that is, in words.
        val_loss: its loss there, BatchNorm re-estimated.
        passes: of the training, forward and backward, in epochs of ordinary training.
    """

    arrays: Arrays
    kept: str
    val_loss: float
    passes: float


class Start(NamedTuple):
    """Where a search begins.

    Attributes:
        name: what a reader is told.
        width: how many snapshots it averages.
        arrays: parameters and statistics.
        cost: what choosing it cost.
    """

    name: str
    width: float
    arrays: Arrays
    cost: Cost


class StageOneSoFar:
    """A stage 1 up to one epoch, and what can be done from there. ``val`` chooses, BatchNorm re-estimated each time.

    It takes the steps of as many ranks as stage 1 had: their batches are micro-batches of this one process.

    Args:
        data: folder with train/, val/ and test/.
        run: folder of the stage 1.
        one: its configuration.
        two: of the searches; network, seed and loss must be stage 1's.
        at: the epoch.

    Raises:
        ConfigError: stage 1 has not kept what is needed of that epoch.
    """

    def __init__(self, data: Path, run: Path, one: StageOneConfig, two: StageTwoConfig, at: int):
        self.data, self.run, self.at, self.seconds_shared = data, run, at, 0.0
        self.checkpoint = checkpoint_of(run, at)
        self.series = CheckpointSeries.open(run / STAGE_1_CHECKPOINTS / SNAPSHOTS).select(until_epoch=at)
        images = {split: build_data(two.data, data, split) for split in SPLITS}
        self.train, self.val = images["train"], images["val"]
        n_ranks = ranks_of(one, self.train.n_images, self.checkpoint)
        if n_ranks > 1:
            note(f"{run} was trained on {n_ranks} devices; here one process takes their batches one after the other")
        self.one = one.model_copy(update=on_one_process(one, n_ranks))
        two = two.with_epochs_after(at).with_batches_of(one)
        self.two = two.model_copy(update=on_one_process(two, n_ranks))
        self.network = build_network(one)
        self.layout = WeightLayout.from_network(self.network)
        on = OnSplits(self.network, images, build_scores(two), seed=two.seed, n_batches=two.reestimate_batches)
        self.evaluator = Evaluator(on, images)
        self.saved = read_checkpoint(self.checkpoint)
        self.last = {parameter.name: self.saved[parameter.name] for parameter in self.network.get_parameters()}
        self._bases: dict[str, SubspaceBasis] = {}

    def with_weights(self, vector: np.ndarray) -> Arrays:
        """The full checkpoint with other weights; its statistics stay."""
        return self.last | {name: np.array(value) for name, value in self.layout.unflatten(vector).items()}

    def losses(self, arrays: Arrays) -> np.ndarray:
        """On each sample of ``val``, statistics re-estimated."""
        return self.evaluator.val_losses(self.evaluator.reestimated(arrays))

    def loss(self, vector: np.ndarray) -> float:
        """On ``val``, of weights (M,), statistics re-estimated."""
        return float(self.losses(self.with_weights(vector)).mean())

    def best(self, points: Mapping[str, Arrays], passes: float, start: Start | None = None) -> Found:
        """What ``Selection`` chooses as stage 2 does; with ``start`` also from it and the best average."""
        newest, selection, widths = list(points.values()), Selection(), dict.fromkeys(points, 1.0)
        candidates = dict(points)
        for length in window_grid(len(newest)).get(len(newest), []):
            name = f"mean of the latest {length} epochs"
            candidates[name] = {key: np.mean([point[key] for point in newest[-length:]], axis=0) for key in newest[0]}
            widths[name] = length
        if start is not None:
            for other in (self.window, start):
                candidates[other.name], widths[other.name] = other.arrays, other.width
        for name, arrays in candidates.items():
            selection.measure(name, widths[name], self.losses, arrays)
        kept = selection.choose()
        return Found(candidates[kept.name], kept.name, kept.loss, passes)

    def epochs_of(self, cost: Cost) -> float:
        """Passes in epochs of ordinary training, forward and backward; the evaluator's cost counts them too."""
        self.evaluator.cost.forward += cost.forward
        self.evaluator.cost.backward += cost.backward
        return (cost.forward + cost.backward) / (2 * self.train.n_images)

    def search(self, start: Start, options: Mapping[str, Any], basis: Basis | None = None) -> Found:
        """Stage 2 with some options changed; where ``keep_best`` is set, ``val`` chooses among start and epochs.

        Args:
            start: where it begins.
            options: name -> value.
            basis: in place of the snapshots'.
        """
        settings, cost, optimizer = self.two.model_copy(update=dict(options)), Cost(), None
        if settings.residual == "continued":
            settings = settings.model_copy(update=self._batches_of_stage_1() | {"weight_decay": 0.0})
        images = build_data(settings.data, self.data, settings.search_split, accumulation=settings.accumulation)
        check_ranks(ALONE, settings, images)
        network = build_network(settings)
        from_arrays(network.get_parameters(), start.arrays, "the start of the search")
        if settings.residual == "continued":
            continuation = read_continuation(settings, network, self.checkpoint, self.saved)
            optimizer = build_continued_optimizer(continuation, settings, network, images.steps_per_epoch)
        if basis is None and settings.n_components > 0:
            basis = self.basis(basis_kind(settings))
        step = self.search_step(settings, network, basis, images.steps_per_epoch, optimizer)
        points: dict[str, Arrays] = {}

        def keep_epoch() -> None:
            points[f"epoch {len(points) + 1}"] = to_arrays(network.get_parameters())

        loop = EpochLoop(
            "search", step, images, seed=settings.seed, n_epochs=settings.n_epochs, first_order=SEARCH_EPOCHS_FROM
        )
        try:
            loop.run(Place(), CountPasses(cost, keep_epoch))
        except NothingAcceptedError as stop:
            note(f"the search ends: {stop}")
        free_graphs(step)
        if settings.keep_best:
            return self.best(points, self.epochs_of(cost), start)
        return self.best({"the end": to_arrays(network.get_parameters())}, self.epochs_of(cost))

    def search_step(
        self,
        settings: StageTwoConfig,
        network: nn.Cell,
        basis: Basis | None,
        steps_per_epoch: int,
        optimizer: nn.Optimizer | None,
    ) -> SubspaceTrainStep:
        """The step of ``search``; a study of other steps overrides it."""
        return build_search_step(settings, network, basis, steps_per_epoch, optimizer=optimizer)

    def plain(self, total: int, peaks: Sequence[float]) -> tuple[float, Found]:
        """Training from the beginning, with a linear schedule made for ``total`` epochs; the peak that ``val`` chooses.

        Raises:
            FaultError: it diverges, with each of the peaks.
        """
        tried: dict[float, Found] = {}
        for peak in peaks:
            try:
                tried[peak] = self._plain(total, peak)
            except FaultError as fault:
                note(f"plain training with the peak {peak:g} diverged: {fault}")
        if not tried:
            raise FaultError(
                f"plain training diverged with each of the peaks {', '.join(f'{peak:g}' for peak in peaks)}"
            )
        return min(tried.items(), key=lambda one: one[1].val_loss)

    def _plain(self, total: int, peak: float) -> Found:
        warmup = min(self.one.schedule.warmup_epochs, total - 1)
        made = {"name": "linear", "peak": peak, "warmup_epochs": warmup, "total_epochs": total, "cooldown": None}
        schedule, cost = self.one.schedule.model_copy(update=made | {"milestones": ()}), Cost()
        settings = self.one.model_copy(update={"schedule": schedule, "epochs": total})
        arrays = _train(settings, self.data, cost)
        return self.best({f"epoch {total}": arrays}, self.epochs_of(cost))

    def to_the_end(self) -> Found:
        """Stage 1 itself, optimizer state included, to the end of its schedule or cooldown; it must have one."""
        total, cost = self.one.schedule.last_epoch or self.at, Cost()
        arrays = _train(self.one.model_copy(update={"epochs": total}), self.data, cost, self.saved, self.at)
        return self.best({f"epoch {total}": arrays}, self.epochs_of(cost))

    def basis(self, kind: str) -> SubspaceBasis:
        """The basis of the snapshots, fitted once; its seconds count for no method."""
        if kind not in self._bases:
            note(f"seed {self.one.seed}: basis ({kind})")
            started = time.perf_counter()
            self._bases[kind] = fit_basis(self.series, self.two.n_components, kind=kind, layout=self.layout)
            self.seconds_shared += time.perf_counter() - started
        return self._bases[kind]

    @cached_property
    def window(self) -> Start:
        """The start that stage 2 would choose as ``best``; found once, and its seconds count for no method."""
        started, before = time.perf_counter(), self.evaluator.cost
        self.evaluator.cost = Cost()
        last = ("last", 1.0, self.layout.flatten(self.last))
        averages = SnapshotAverages(self.series, self.layout)
        chosen = search_windows(averages, lambda vector: self.losses(self.with_weights(vector)), [last])
        arrays = self.evaluator.reestimated(self.with_weights(chosen.weights))
        found = Start(chosen.candidate.name, chosen.candidate.width, arrays, self.evaluator.cost)
        self.evaluator.cost = before
        self.seconds_shared += time.perf_counter() - started
        return found

    def last_start(self) -> Start:
        """The last weights, to begin from."""
        return Start("last", 1.0, self.last, Cost())

    def chosen_window(self) -> Start:
        """``window``; whoever asks pays for the choice in passes."""
        self.evaluator.cost.forward += self.window.cost.forward
        return self.window

    def _batches_of_stage_1(self) -> dict[str, Any]:
        """Its rates are made for them; those of a configuration for another residual are not."""
        if self.two.residual == "continued":
            return {}
        data = self.two.data.model_copy(update={"batch_size": self.one.data.batch_size})
        return {"data": data, "accumulation": self.one.accumulation, "clipping": self.one.clipping}


def _train(
    settings: StageOneConfig,
    data: Path,
    cost: Cost,
    begin: Mapping[str, np.ndarray] | None = None,
    after_epoch: int = 0,
) -> Arrays:
    """Ordinary training to the end of ``settings.epochs``; with ``begin`` from a full checkpoint, after its epoch."""
    ms.set_seed(settings.seed)  # the weights that a stage 1 with this seed begins with
    images = build_data(settings.data, data, "train", accumulation=settings.accumulation)
    check_ranks(ALONE, settings, images)
    network = build_network(settings)
    step = build_train_step(settings, network, images.steps_per_epoch)
    if begin is not None:
        from_arrays(parameters_to_save(step), begin, "the full checkpoint")
    loop = EpochLoop("plain", step, images, seed=settings.seed, n_epochs=settings.epochs)
    try:
        loop.run(Place(after_epoch + 1), CountPasses(cost))
    finally:  # after a peak at which it diverged, others are tried
        free_graphs(step)
    return to_arrays(network.get_parameters())
