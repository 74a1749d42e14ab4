"""Run stage 2 with a search: find or fit its basis, and add the search's records and state to those of stage 2."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from dimred.checkpoints.series import CheckpointSeries
from dimred.config import SearchConfig, StageTwoConfig
from dimred.data.batches import Batches
from dimred.distributed.share import share
from dimred.errors import ConfigError, NothingAcceptedError
from dimred.evaluation.averages import shared
from dimred.evaluation.scores import Scores
from dimred.io.metrics_file import metric_text, read_metrics
from dimred.io.run_names import BASIS, STATES
from dimred.search_step.result import search_line, totals
from dimred.search_step.step import SearchStep
from dimred.stages.checks import snapshots_until
from dimred.stages.loop import Place
from dimred.stages.parent import Handover
from dimred.stages.run import loss_text
from dimred.stages.run_folder import Session
from dimred.stages.stage_2 import Finish
from dimred.stages.subspace_train_step import build_search_step
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.fit import fit_basis
from dimred.subspace.spectrum import check_enough
from dimred.train_step.protocol import Result

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class SearchRun(Finish):
    """Stage 2 with a search in the subspace of stage 1's snapshots; each step has a record of its own.

    Attributes:
        step: the search step.
        basis: the basis to search in, on every rank.
        records: one for each step, as in ``metrics.jsonl``.
    """

    step: SearchStep
    basis: SubspaceBasis

    def __post_init__(self) -> None:
        super().__post_init__()
        self.records: list[dict[str, Any]] = []
        self.session.identity["PCA_MAT"] = self.basis.digest

    def put_start(self, snapshots: CheckpointSeries | None) -> None:
        """Set the network to the weights that stage 2 begins with; with ``start: mean``, to the mean of the basis."""
        if self.settings.start == "mean":
            # Rank 0's mean, because a different host may have only the rows, not the file beside them that has it.
            self.on.put(shared(self.ranks.run_on_rank_zero(self._mean), self.on.layout, self.ranks))
            n_snapshots = len(self.basis.snapshots) if self.ranks.is_rank_zero else 0
            self.result["start_effective_size"] = float(self.ranks.sum([n_snapshots])[0])
        super().put_start(snapshots)

    def _mean(self) -> np.ndarray:
        if self.basis.mean is None:
            raise ConfigError(
                "start is 'mean', but the basis file has no mean of the snapshots beside it; use start=last"
            )
        return self.basis.mean

    def train(self) -> None:
        """Run the search for the remaining epochs; stop early if no step is accepted any more."""
        self.records = read_metrics(self.session.metrics_file)
        try:
            self.loop.run(self.place, self)
        except NothingAcceptedError as stop:
            self.result |= {"stopped": str(stop), "epochs": len(self.records) / self.per_epoch}
            _log.info(f"the search stops in epoch {self.place.epoch}: {stop}")
            if self.place.done:  # the steps since the last epoch count as an epoch, whose end is a candidate
                self.last = self.last_step(self._result)
                self.after_epoch(self.place)

    def after_step(self, result: Result, place: Place) -> str:
        """Record the step, without a check for divergence, because a step that is not finite changes nothing."""
        self._result = result
        self.records.append(self.metrics.write(epoch=place.epoch, step=len(self.records) + 1, **result.record()))
        value = [self.result[f"{self.metric}_start"], *self.result[f"{self.metric}_by_epoch"].values()][-1]
        return f"loss {loss_text(self.records[-1]['loss_after'])}, {self.metric} {metric_text(self.metric, value, 1)}"

    def last_step(self, result: Result) -> dict[str, Any]:
        """Return the loss after the step's line search."""
        return {"loss": self.records[-1]["loss_after"], "parts": {}}

    def write_epoch(self, place: Place, evaluation_seconds: float) -> None:
        """Log what the search did in the epoch; its steps are recorded already."""
        _log.info(search_line(self.records[-self.per_epoch :]))

    def totals(self) -> dict[str, Any]:
        """Return the totals of the search, and a summary of its basis."""
        return totals(self.records) | {"basis": self.basis.in_short(self.step.direction.n_components)}


def find_basis(
    search: SearchConfig, network: nn.Cell, weights: Path, pca_mat: Path | None, out: Path, *, resume: bool
) -> SubspaceBasis | CheckpointSeries:
    """Find the basis to search in, on rank 0; nothing is fitted yet.

    Args:
        search: stage 2's section ``search``.
        network: the network that the basis must fit.
        weights: WEIGHTS, with the snapshots beside them.
        pca_mat: PCA_MAT, or None.
        out: folder of the run. A run that is resumed has its basis there, whatever became of the snapshots.
        resume: whether the run may be resumed.

    Returns:
        The basis, or the snapshots to fit one on.

    Raises:
        SeriesError: the snapshots are too few, or can't be read.
        BasisMismatchError: the basis is missing or damaged, or belongs to a different network.
    """
    own = out / BASIS
    if pca_mat is None and resume and (out / STATES).is_dir() and own.exists():
        pca_mat = own
    if pca_mat is not None:
        basis = load_basis(pca_mat, network=network)
        if search.n_components > basis.n_components:
            raise ConfigError(
                f"search.n_components is {search.n_components}, but {pca_mat} has {basis.n_components}; use --set "
                f"search.n_components={basis.n_components}, or make a larger basis: dimred pca --n-components "
                f"{search.n_components}"
            )
        return basis
    snapshots = snapshots_until(weights)
    check_enough(len(snapshots), search.n_components, search.basis, snapshots.directory)
    return snapshots


def build_search_run(
    session: Session,
    settings: StageTwoConfig,
    network: nn.Cell,
    images: Mapping[str, Batches],
    scores: Scores,
    sources: Mapping[str, Path | None],
    handover: Handover | None,
    found: SubspaceBasis | CheckpointSeries | None,
    search: SearchConfig,
    whole: StageTwoConfig,
    steps_per_epoch: int,
) -> SearchRun:
    """Fit the basis if there is none yet, share it with the other ranks, and build the run.

    Args:
        session, settings, network, images, scores, sources, handover: see ``Finish``.
        found: the basis, or the snapshots to fit one on; on rank 0.
        search: the section ``search`` of the settings.
        whole: settings of the whole run, whose steps determine the rates; a fast dev run has shorter ``settings``.
        steps_per_epoch: steps in an epoch of the whole run.
    """

    def fitted() -> SubspaceBasis | None:
        if not isinstance(found, CheckpointSeries):
            return found
        _log.debug("fitting the basis")
        out, is_unused = session.out / BASIS, not (session.out / STATES).is_dir()  # then a killed start has left it
        return fit_basis(found, search.n_components, out=out, kind=search.basis, network=network, overwrite=is_unused)

    def load(path: Path) -> SubspaceBasis:
        return load_basis(path, network=network, verify=False)

    ranks = session.ranks
    basis: SubspaceBasis = share(ranks.run_on_rank_zero(fitted), ranks, load)
    step = build_search_step(whole, search, handover, network, basis, steps_per_epoch, ranks)
    return SearchRun(
        session, settings, network, step, images, scores, {**sources, "basis": basis.path}, handover, basis
    )
