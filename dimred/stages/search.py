"""The method ``search``: search in a basis's subspace, and keep the last network."""

import logging
import platform
import zlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
from mindspore import nn

from dimred.checkpoints.series import CheckpointSeries
from dimred.checkpoints.states import RunState
from dimred.config import SearchConfig, StageOneConfig, StageTwoConfig
from dimred.distributed.ranks import Ranks
from dimred.errors import ConfigError
from dimred.run_files.metric import AS_TRAINED
from dimred.run_files.metrics_file import each_record, loss_text
from dimred.run_files.run_names import BASIS, METRICS, SNAPSHOTS
from dimred.run_files.stage_two_result import StageTwoResult
from dimred.runs.begun import Pin
from dimred.runs.device import compile_at
from dimred.runs.loop import Progress
from dimred.runs.run import Run
from dimred.runs.steps import build_loss, build_parts
from dimred.runs.task import Task
from dimred.search_step.result import search_line, totals
from dimred.search_step.search_step import SearchStep
from dimred.stages.disk import FLOAT, sizes
from dimred.stages.method import Method, NextCommands, Plan
from dimred.stages.parent import StageOneRun
from dimred.stages.point_files import PointFiles
from dimred.stages.subspace_train_step import options_of_step
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.fit import fit_basis
from dimred.subspace.spectrum import check_enough
from dimred.train_step.protocol import Result
from dimred.train_step.schedule import make_rates

_log = logging.getLogger(__name__)

_VECTORS = 8  # how many vectors as long as the weights a step holds


@dataclass(eq=False)
class SearchMethod(Method):
    """The hooks of a search: they record each step.

    Attributes:
        basis: the basis to search in.
    """

    basis: SubspaceBasis
    _records: list[dict[str, Any]] = field(default_factory=list, init=False)  # this epoch's steps

    def pins(self) -> dict[str, Pin]:
        """Return the basis's pin; it has no path if the basis was fitted for this run, into its folder."""
        path = self.basis.path
        if path is None or path == self.run.folder / BASIS:
            return {"PCA_MAT": Pin(str(self.basis.digest))}
        return {"PCA_MAT": Pin(str(self.basis.digest), str(path.resolve()))}

    def describe(self, result: StageTwoResult) -> None:
        """Note where the basis is."""
        if self.basis.path is not None:
            result.sources["basis"] = str(self.basis.path.resolve())

    def restore(self, state: RunState) -> None:
        """Read the records of this epoch's earlier steps."""
        records = each_record(self.run.folder / METRICS)
        self._records = [record for record in records if record["epoch"] == self.run.progress.epoch]

    def reads_after(self, done: int) -> bool:
        """Return True: a step has already waited for its numbers, so reading them costs nothing more."""
        return True

    def after_step(self, made: Result, progress: Progress, result: StageTwoResult) -> str | None:
        """Record the step; a loss that is not finite does not mean divergence, because such a step changes nothing."""
        run = self.run
        main = result.main
        run.note(made, checks_divergence=False)
        self._records.append(run.records.write(epoch=progress.epoch, step=run.n_steps, **made.record()))
        loss = loss_text(self._records[-1]["loss_after"])
        value = list(main.by_point.values())[-1][AS_TRAINED]
        return f"loss {loss}, {main.metric.name} {main.metric.text(value, 1)}"

    def after_epoch(self, progress: Progress, evaluation_seconds: float) -> None:
        """Log a line that sums up the epoch's steps."""
        _log.info(search_line(self._records))
        self._records = []

    def finish(self, result: StageTwoResult) -> None:
        """Note the totals over all steps, and a summary of the basis; the network stays as it is."""
        result.totals = totals(each_record(self.run.folder / METRICS))
        result.basis = self.basis.in_short(self.run.config.search.n_components)


@dataclass(eq=False)
class SearchPlan(Plan[SearchConfig]):
    """The plan of a search: its basis is given, or fitted on stage 1's snapshots.

    Attributes:
        basis: the basis, or the snapshots to fit it on; on rank 0 after ``check``, None elsewhere.
    """

    vectors_in_state: ClassVar[int] = 1
    basis: SubspaceBasis | CheckpointSeries | None = None

    def next_commands(self, config_1: StageOneConfig, weights: Path, run_folder: Path) -> NextCommands | None:
        """Return the PCA command, with its file as stage 2's argument; None if there are too few snapshots.

        Both ask for no more directions than the snapshots give.
        """
        snapshots = weights.absolute().parent / SNAPSHOTS
        n_snapshots = len(CheckpointSeries.open(snapshots)) if any(snapshots.glob("*")) else 0
        n_components = min(self.section.n_components, n_snapshots - 1)
        if n_components < 1:
            return None
        basis = run_folder.absolute().parent / BASIS
        if basis.exists():  # perhaps from other snapshots, and ``dimred pca`` replaces nothing
            basis = basis.with_stem(f"{basis.stem}_{weights.stem}")
        pca = ["pca", "--ckpt-dir", str(snapshots), "--n-components", str(n_components), "--out", str(basis)]
        arguments = [str(basis)]
        if n_components < self.section.n_components:
            arguments += ["--set", f"search.n_components={n_components}"]
        return NextCommands([pca], arguments)

    def check_parent(self, parent: StageOneRun) -> None:
        """Check that there are enough snapshots to fit the basis on."""
        snapshots = parent.snapshots()
        check_enough(len(snapshots), self.section.n_components, self.section.basis, snapshots.directory)

    def disk(self, network: nn.Cell, pca_mat: Path | None) -> int:
        """Return about how many bytes the run takes on disk, including the basis if it must be fitted."""
        n_bytes = super().disk(network, pca_mat)
        if pca_mat is None:
            weights, _ = sizes(network)
            n_bytes += FLOAT * (self.section.n_components + 2) * weights
        return n_bytes

    def check(self, task: Task[StageTwoConfig], parent: StageOneRun, pca_mat: Path | None) -> None:
        """Find the basis, or the snapshots to fit it on, and check that the memory suffices."""
        find = partial(self._find_basis, task.network, parent, pca_mat)
        self.basis = task.problems.collect(lambda: task.ranks.run_on_rank_zero(find))
        task.problems.collect(lambda: check_search_memory(self.config, task.network, task.ranks))

    def _find_basis(
        self, network: nn.Cell, parent: StageOneRun, pca_mat: Path | None
    ) -> SubspaceBasis | CheckpointSeries:
        """Return the basis, or the snapshots to fit one on; nothing is fitted yet.

        Raises:
            ConfigError: PCA_MAT has fewer directions than ``search.n_components``.
            SeriesError: the snapshots are too few, or can't be read.
            BasisMismatchError: the basis is missing or damaged, or belongs to a different network.
        """
        if pca_mat is None:
            self.check_parent(parent)
            return parent.snapshots()
        basis = load_basis(pca_mat, network=network)
        n_components = self.section.n_components
        if n_components > basis.n_components:
            raise ConfigError(
                f"search.n_components is {n_components}, but {pca_mat} has {basis.n_components}; use --set "
                f"search.n_components={basis.n_components}, or make a larger basis: dimred pca --n-components "
                f"{n_components}"
            )
        return basis

    def build(
        self, run: Run[StageTwoConfig], task: Task[StageTwoConfig], parent: StageOneRun, files: PointFiles
    ) -> Method:
        """Fit the basis if there is none yet, share it with the ranks, and build the step.

        Raises:
            SeriesError: the snapshots are too few, or can't be read; the other ranks raise a DimredError.
            BasisMismatchError: the basis does not fit the network on this rank; the other ranks raise a DimredError.
            DimredError: a host lacks the basis's file, or has a different file under its path.
        """
        network = task.network
        basis = task.ranks.run_on_rank_zero(lambda: self._fitted(network, run.folder))
        basis = task.ranks.share(basis, partial(load_basis, network=network, verify=False))
        return SearchMethod(run, build_search_step(task, basis), basis)

    def _fitted(self, network: nn.Cell, out: Path) -> SubspaceBasis | None:
        """Return the basis; if there is none yet, fit one and write it into the run's folder."""
        if not isinstance(self.basis, CheckpointSeries):
            return self.basis
        _log.debug("fitting the basis")
        search = self.section
        # A run that has begun already has its basis, so a basis found here was left by a start that was killed.
        return fit_basis(
            self.basis, search.n_components, out=out / BASIS, kind=search.basis, network=network, overwrite=True
        )


def check_search_memory(config: StageTwoConfig, network: nn.Cell, ranks: Ranks) -> None:
    """Check that this host has enough free memory for its ranks' search; all ranks call this.

    Each rank keeps its part of the basis and some vectors; see ``search_memory``.
    """
    here = ranks_on_this_host(ranks)
    n_bytes = here * search_memory(config, network, ranks.group_size)
    available = psutil.virtual_memory().available
    if available < n_bytes:
        of_ranks = f" of {here} ranks" if here > 1 else ""
        raise ConfigError(
            f"the search{of_ranks} needs {n_bytes / 1e6:,.0f} MB of memory, but {available / 1e6:,.0f} MB are free; "
            "free some, or lower search.n_components"
        )


def ranks_on_this_host(ranks: Ranks) -> int:
    """Return how many ranks have this host's name; all ranks call this."""
    names = np.zeros(ranks.group_size)
    names[ranks.rank] = 1 + zlib.crc32(platform.node().encode()) % 2**23  # float32 holds these numbers exactly
    names = ranks.sum(names)
    return int(np.sum(names == names[ranks.rank]))


def search_memory(config: StageTwoConfig, network: nn.Cell, group_size: int) -> int:
    """Return about how many bytes a rank keeps for a search: its share of the basis, and a step's vectors."""
    n_weights = sum(weight.size for weight in network.trainable_params())
    return 4 * (-(-config.search.n_components // group_size) + _VECTORS) * n_weights


def build_search_step(task: Task[StageTwoConfig], basis: SubspaceBasis) -> SearchStep:
    """Build a search's step; the task's network has the weights to begin from, and the basis fits it.

    Raises:
        ConfigError: the loss can't be built (see ``build_loss``), or network and parts don't fit a search (see
            ``SearchStep``).
    """
    config = task.config
    network = task.network
    search = config.search
    if search.rule == "sgd" and search.learning_rate_schedule == "linear":
        n_steps = config.n_epochs * task.steps_per_epoch
        rates = make_rates("linear", search.learning_rate, 0, n_steps)
        search = search.model_copy(update={"learning_rate": rates})
    parts = build_parts(config, network)
    loss = build_loss(config, network)
    step = SearchStep(loss, ranks=task.ranks, **options_of_step(search, basis), **parts)
    compile_at(config.precision.jit_level, step)
    return step
