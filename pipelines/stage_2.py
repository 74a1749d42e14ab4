"""Stage 2: search in the small subspace that stage 1's snapshots span.

python -m dimred.pipelines.stage_2 DATA WEIGHTS [PCA_MAT] --config pipelines/configs/digits_stage_2.yaml
"""

from pathlib import Path
from typing import Annotated

import typer
from mindspore import nn

from dimred.build import build_data, build_network, build_scores, build_search_step, check_ranks, check_scores
from dimred.build.continuation import build_continued_optimizer, share_continuation, with_batches_of_stage_1
from dimred.build.preflight import basis_kind, check_stage_2, splits_read
from dimred.config import StageTwoConfig, load_config
from dimred.console import AllowChange, Data, DeviceTarget, Overrides, Resume, Weights, doing, run_program
from dimred.data.batches import SEARCH_EPOCHS_FROM
from dimred.distributed.share import share_basis
from dimred.files.run_names import BASIS, checkpoint_place
from dimred.launch.channel import tell_refusal
from dimred.run.device import set_up
from dimred.run.search import Search
from dimred.run.session import open_session
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.fit import fit_basis
from dimred.vectors.parameters import from_arrays
from dimred.weights.series import CheckpointSeries


def stage_2(
    data: Data,
    weights: Weights,
    config: Annotated[Path, typer.Option(help="YAML file, see pipelines/configs.")],
    pca_mat: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PCA_MAT]",
            help="Basis of a search; fitted on checkpoint_pca/ beside WEIGHTS if not given.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="New folder for checkpoints and metrics.")] = Path("device0_stage_2"),
    resume: Resume = False,
    allow_change: AllowChange = None,
    device_target: DeviceTarget = "CPU",
    overrides: Overrides = None,
) -> None:
    """Bring stage 1's training to its end, or search in the subspace of its snapshots; keep the best network.

    Among what may be kept are averages of the snapshots; the split val chooses.
    """
    place = checkpoint_place(weights)
    settings = load_config(StageTwoConfig, config, overrides or []).with_epochs_after(place and place.epoch)
    ranks = set_up(settings.seed, device_target, all_reduce_split=settings.all_reduce_split)
    settings = with_batches_of_stage_1(settings, weights, ranks)
    network = build_network(settings)
    found = check_stage_2(settings, network, data, weights, pca_mat, out, resume, ranks)
    images = {
        split: build_data(settings.data, data, split, ranks, settings.accumulation) for split in splits_read(settings)
    }
    check_ranks(ranks, settings, images[settings.search_split])
    scores = build_scores(settings)
    check_scores(settings, network, scores, images)
    with open_session(out, settings, ranks, resume=resume) as session:
        if found.weights is not None:
            from_arrays(network.get_parameters(), found.weights, f"WEIGHTS {str(weights)!r}")
        ranks.broadcast(list(network.get_parameters()))
        basis, shared = ranks.run_on_rank_zero(lambda: _fitted(found.basis, settings, network, out)), None
        if settings.n_components > 0:
            shared = share_basis(basis, ranks, lambda path: load_basis(path, network=network, verify=False))
        per_epoch, continuation, optimizer = images[settings.search_split].steps_per_epoch, None, None
        if settings.residual == "continued":
            continuation = share_continuation(found.continuation, ranks)
            optimizer = build_continued_optimizer(continuation, settings, network, per_epoch, ranks)
        step = build_search_step(settings, network, shared, per_epoch, ranks, optimizer)
        sources = {"data": data, "weights": weights, "basis": basis.path if basis else None}
        taken_over = {} if continuation is None else continuation.summary(settings.residual_factor)
        search = Search(
            session, settings, network, step, images, scores, basis, sources, taken_over, SEARCH_EPOCHS_FROM
        )
        if not search.restore(allow_change or []):
            search.put_start(found.snapshots)
        search.run()


def _fitted(
    basis: SubspaceBasis | CheckpointSeries | None, settings: StageTwoConfig, network: nn.Cell, out: Path
) -> SubspaceBasis | None:
    """PCA_MAT as it is; of snapshots, the basis."""
    if not isinstance(basis, CheckpointSeries):
        return basis
    doing("fitting the basis")
    return fit_basis(basis, settings.n_components, out=out / BASIS, kind=basis_kind(settings), network=network)


if __name__ == "__main__":
    run_program(stage_2, tell_refusal)
