"""Everything that can be checked before the first step; all problems are one error."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mindspore import nn

from dimred.build.cost import stage_1_disk, stage_2_disk, stage_2_memory
from dimred.build.network_and_data import check_splits
from dimred.build.preflight import Problems, bytes_below, check_memory, check_space
from dimred.config import StageOneConfig, StageTwoConfig
from dimred.distributed.ranks import Ranks
from dimred.files.run_names import SNAPSHOTS
from dimred.run.folder import check_run_folder
from dimred.run.full_checkpoints import read_full_checkpoint
from dimred.subspace.basis import load_basis
from dimred.subspace.spectrum import check_enough
from dimred.vectors.parameters import from_arrays
from dimred.weights.checkpoint_io import read_checkpoint
from dimred.weights.series import CheckpointSeries


def basis_kind(settings: StageTwoConfig) -> str:
    """The kind of basis that the search works in."""
    return "snapshots" if settings.search == "average" else "pca"


def check_stage_1(
    settings: StageOneConfig, network: nn.Cell, data: Path, out: Path, go_on_from: Path | None, resume: bool
) -> tuple[dict[str, np.ndarray], int] | None:
    """Check data, folder, free space, and the checkpoint to begin with; that checkpoint and its epoch.

    Raises:
        ConfigError: lists every problem.
    """
    problems, first = Problems(), None
    with problems.noted():
        check_splits(settings, data, ["train", settings.data.eval_split])
    with problems.noted():
        check_run_folder(out, resume=resume)
    with problems.noted():
        check_space(out, stage_1_disk(settings, network) - bytes_below(out), "stage 1")
    with problems.noted():
        if go_on_from is not None:
            first = read_full_checkpoint(go_on_from, f"--from is {str(go_on_from)!r}, which")
    problems.refuse()
    return first


def check_stage_2(
    settings: StageTwoConfig,
    network: nn.Cell,
    data: Path,
    splits: Sequence[str],
    weights: Path,
    pca_mat: Path | None,
    out: Path,
    resume: bool,
    ranks: Ranks,
) -> None:
    """Check data, folder, free space, memory, the basis; put WEIGHTS into the network, on rank 0.

    Raises:
        ConfigError: lists every problem.
    """
    problems = Problems()
    with problems.noted():
        check_splits(settings, data, splits)
    with problems.noted():
        check_run_folder(out, resume=resume)
    with problems.noted():
        if ranks.is_rank_zero:
            from_arrays(network.get_parameters(), read_checkpoint(weights), f"WEIGHTS {str(weights)!r}")
    with problems.noted():
        if pca_mat is not None and ranks.is_rank_zero:
            load_basis(pca_mat, network=network, verify=False)
    with problems.noted():
        if pca_mat is None and ranks.is_rank_zero:
            series = CheckpointSeries.open(weights.parent / SNAPSHOTS)
            check_enough(len(series), settings.n_components, basis_kind(settings), series.directory)
    with problems.noted():
        check_space(out, stage_2_disk(settings, network, pca_mat is None) - bytes_below(out), "stage 2")
    with problems.noted():
        check_memory(stage_2_memory(settings, network) // ranks.group_size, "the basis")
    problems.refuse()
