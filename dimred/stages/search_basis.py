"""The basis of a search: load or fit it, share it with the ranks, and check that the memory suffices."""

import logging
import platform
import zlib
from pathlib import Path

import numpy as np
import psutil
from mindspore import nn

from dimred.checkpoints.series import CheckpointSeries
from dimred.config import SearchConfig, StageTwoConfig
from dimred.distributed.ranks import Ranks
from dimred.errors import ConfigError
from dimred.io.run_names import BASIS
from dimred.stages.parent import StageOneRun
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.fit import fit_basis
from dimred.subspace.spectrum import check_enough

_log = logging.getLogger(__name__)

_VECTORS = 8  # of a step, each as long as the weights


def find_basis(
    search: SearchConfig, network: nn.Cell, parent: StageOneRun, pca_mat: Path | None
) -> SubspaceBasis | CheckpointSeries:
    """Find the basis to search in, on rank 0; nothing is fitted yet.

    Args:
        search: stage 2's section ``search``.
        network: the network that the basis must fit.
        parent: the run that WEIGHTS come from, with its snapshots.
        pca_mat: PCA_MAT, or the basis of the run that is resumed; None for neither.

    Returns:
        The basis, or the snapshots to fit one on.

    Raises:
        ConfigError: PCA_MAT has fewer directions than ``search.n_components``.
        SeriesError: the snapshots are too few, or can't be read.
        BasisMismatchError: the basis is missing or damaged, or belongs to a different network.
    """
    if pca_mat is not None:
        basis = load_basis(pca_mat, network=network)
        if search.n_components > basis.n_components:
            raise ConfigError(
                f"search.n_components is {search.n_components}, but {pca_mat} has {basis.n_components}; use --set "
                f"search.n_components={basis.n_components}, or make a larger basis: dimred pca --n-components "
                f"{search.n_components}"
            )
        return basis
    snapshots = parent.snapshots()
    check_enough(len(snapshots), search.n_components, search.basis, snapshots.directory)
    return snapshots


def check_search_memory(config: StageTwoConfig, network: nn.Cell, ranks: Ranks) -> None:
    """Check that this host has enough free memory for the search of its ranks; all ranks call this.

    Each rank keeps its part of the basis and some vectors, see ``search_memory``.
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
    names[ranks.rank] = 1 + zlib.crc32(platform.node().encode()) % 2**23  # which float32 holds exactly
    names = ranks.sum(names)
    return int(np.sum(names == names[ranks.rank]))


def search_memory(config: StageTwoConfig, network: nn.Cell, group_size: int) -> int:
    """Return about how many bytes a rank keeps for a search: its equal part of the basis, and the vectors of a step."""
    n_weights = sum(weight.size for weight in network.trainable_params())
    return 4 * (-(-config.search.n_components // group_size) + _VECTORS) * n_weights


def fit_and_share(
    basis: SubspaceBasis | CheckpointSeries | None, search: SearchConfig, network: nn.Cell, out: Path, ranks: Ranks
) -> SubspaceBasis:
    """Fit the basis if there is none yet, and return it on every rank.

    Args:
        basis: the result of ``find_basis`` on rank 0; None elsewhere.
        search: stage 2's section ``search``.
        network: the network that the basis must fit.
        out: folder of the run, which gets a basis that is fitted.
        ranks: all of them call this.

    Raises:
        SeriesError: the snapshots are too few, or can't be read; on the other ranks it is a DimredError.
        BasisMismatchError: the basis does not fit the network on this rank; on the other ranks it is a DimredError.
        DimredError: a host lacks the file of the basis, or has another one under its path.
    """

    def fit() -> SubspaceBasis | None:
        if not isinstance(basis, CheckpointSeries):
            return basis
        _log.debug("fitting the basis")
        # A run that has begun already has its basis, so a basis found here was left by a start that was killed.
        return fit_basis(
            basis, search.n_components, out=out / BASIS, kind=search.basis, network=network, overwrite=True
        )

    def load(path: Path) -> SubspaceBasis:
        return load_basis(path, network=network, verify=False)

    basis_of_all: SubspaceBasis = ranks.share(ranks.run_on_rank_zero(fit), load)
    return basis_of_all
