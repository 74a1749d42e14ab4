"""What stage 2 needs for a search, and nothing else does: the basis, its memory, and the step."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import psutil
from mindspore import nn

from dimred.builders.handover import Handover, build_cooldown_optimizer
from dimred.builders.loss_and_metric import build_loss
from dimred.builders.snapshots import snapshots_until
from dimred.builders.steps import build_parts
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import SearchConfig, SearchOptions, StageTwoConfig
from dimred.data.batches import Batches
from dimred.distributed.ranks import ALONE, Ranks
from dimred.distributed.share import share
from dimred.errors import ConfigError
from dimred.evaluation.scores import Scores
from dimred.io.run_names import BASIS, STATES
from dimred.search_step.basis_check import Basis
from dimred.search_step.step import SubspaceTrainStep
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.fit import fit_basis
from dimred.subspace.spectrum import check_enough
from dimred.train_step.schedule import make_rates
from dimred.trainer.search_run import SearchRun
from dimred.trainer.session import Session

_log = logging.getLogger(__name__)

_FLOAT = 4  # bytes


def find_basis(
    search: SearchConfig, network: nn.Cell, weights: Path, pca_mat: Path | None, out: Path, *, resume: bool
) -> SubspaceBasis | CheckpointSeries:
    """Find the basis to search in, on rank 0; nothing is fitted yet.

    Args:
        search: of stage 2.
        network: whose weights it is of.
        weights: WEIGHTS, beside which the snapshots are.
        pca_mat: PCA_MAT, or None.
        out: folder of the run. A run that is resumed has its basis there, whatever became of the snapshots.
        resume: whether the run is.

    Returns:
        The basis, or the snapshots to fit one on.

    Raises:
        SeriesError, BasisMismatchError: there are too few snapshots, or the basis is of another network.
    """
    own = out / BASIS
    if pca_mat is None and resume and (out / STATES).is_dir() and own.exists():
        pca_mat = own
    if pca_mat is not None:
        return load_basis(pca_mat, network=network)
    snapshots = snapshots_until(weights)
    check_enough(len(snapshots), search.n_components, search.basis, snapshots.directory)
    return snapshots


def check_search_memory(config: StageTwoConfig, network: nn.Cell, group_size: int) -> None:
    """Check that a rank's share of the basis fits into memory, with the vectors beside it.

    Raises:
        ConfigError: it does not.
    """
    needed, available = search_memory(config, network, group_size), psutil.virtual_memory().available
    if available < needed:
        raise ConfigError(
            f"the search needs {needed / 1e6:,.0f} MB of memory, {available / 1e6:,.0f} MB are available; free some, "
            "or lower search.n_components"
        )


def search_memory(config: StageTwoConfig, network: nn.Cell, group_size: int) -> int:
    """Return the bytes of a rank's share of the basis, which every step reads twice, and of the vectors beside it."""
    n_components = 0 if config.search is None else config.search.n_components
    vectors = 8 if config.cooldown is None else 11
    return _FLOAT * (-(-n_components // group_size) + vectors) * sum(one.size for one in network.trainable_params())


def basis_disk(search: SearchConfig, network: nn.Cell) -> int:
    """Return the bytes of a basis that is fitted."""
    return _FLOAT * (search.n_components + 2) * sum(weight.size for weight in network.trainable_params())


def build_search_step(
    config: StageTwoConfig,
    search: SearchConfig,
    handover: Handover | None,
    network: nn.Cell,
    basis: Basis,
    steps_per_epoch: int,
    ranks: Ranks = ALONE,
) -> SubspaceTrainStep:
    """Build stage 2's step with a search.

    Args:
        config: of stage 2.
        search: its section. The rate of ``sgd`` stays, or falls linearly to 0 at the end.
        handover: of stage 1, for a cooldown outside the subspace; None without a cooldown.
        network: with the weights to begin from.
        basis: of its trainable weights.
        steps_per_epoch: of stage 2.
        ranks: of the job.
    """
    optimizer = None
    if config.cooldown is not None and handover is not None:
        optimizer = build_cooldown_optimizer(
            handover, config.cooldown, network, steps_per_epoch, config.n_epochs, ranks
        )
    options = {name: getattr(search, name) for name in SearchOptions.model_fields}
    if search.learning_rate_schedule == "linear":
        options["learning_rate"] = make_rates("linear", search.learning_rate, 0, config.n_epochs * steps_per_epoch)
    parts = build_parts(config, network)
    return SubspaceTrainStep(build_loss(config, network), basis, optimizer=optimizer, ranks=ranks, **parts, **options)


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
) -> SearchRun:
    """Fit the basis where there is none yet, share it with the other ranks, and build the run.

    Args:
        session, settings, network, images, scores, sources: see ``Finish``.
        handover: of stage 1, for a cooldown outside the subspace.
        found: the basis, or the snapshots to fit one on; on rank 0.
        search: the section of the settings.
    """

    def fitted() -> SubspaceBasis | None:
        if not isinstance(found, CheckpointSeries):
            return found
        _log.debug("fitting the basis")
        return fit_basis(found, search.n_components, out=session.out / BASIS, kind=search.basis, network=network)

    ranks, steps = session.ranks, images[search.split].steps_per_epoch
    basis = ranks.run_on_rank_zero(fitted)
    shared = share(basis, ranks, lambda path: load_basis(path, network=network, verify=False))
    step = build_search_step(settings, search, handover, network, cast(Basis, shared), steps, ranks)
    told = None if handover is None or settings.cooldown is None else handover.summary(settings.cooldown)
    sources = {**sources, "basis": basis.path if basis else None}
    return SearchRun(session, settings, network, step, images, scores, sources, told, search, basis)
