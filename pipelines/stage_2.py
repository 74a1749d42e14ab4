"""Stage 2: bring stage 1's training to its end, and keep the best network.

python -m dimred.pipelines.stage_2 DATA WEIGHTS --config pipelines/configs/digits_anytime_2.yaml
"""

import logging
from pathlib import Path
from typing import Annotated

import typer

from dimred.config import StageTwoConfig, load_config
from dimred.console import AllowChange, Data, DeviceTarget, FastDevRun, Overrides, Resume, Weights, run_program
from dimred.io.run_names import checkpoint_place
from dimred.launch.channel import tell_refusal
from dimred.stages.checks import check_stage_2
from dimred.stages.device import set_precision, set_up
from dimred.stages.estimates import disk_of_stage_2, say_plan, shortened
from dimred.stages.parent import build_cooldown_step, share_handover, with_parts_of_stage_1
from dimred.stages.run_folder import open_session
from dimred.stages.stage_2 import Finish
from dimred.stages.task import build_network, build_scores, check_ranks, check_scores
from dimred.vectors.parameters import from_arrays

_log = logging.getLogger("dimred")


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
    fast_dev_run: FastDevRun = False,
    overrides: Overrides = None,
) -> None:
    """Bring stage 1's training to its end, or search in the subspace of its snapshots; keep the best network.

    The split val chooses; averages of the snapshots are among the candidates.
    """
    place = checkpoint_place(weights)
    settings = load_config(StageTwoConfig, config, overrides or []).with_epochs_after(place and place.epoch)
    ranks = set_up(settings.seed, device_target, settings.all_reduce_split, settings.deterministic)
    settings = with_parts_of_stage_1(settings, weights, ranks, out if resume else None)
    set_precision(settings)
    network = build_network(settings)
    found = check_stage_2(settings, network, data, weights, pca_mat, out, resume, ranks)
    images = found.images
    check_ranks(ranks, settings, images[settings.trained_split])
    scores = build_scores(settings)
    check_scores(settings, network, scores, images)
    n_steps = images[settings.trained_split].steps_per_epoch
    say_plan(settings, settings.n_epochs, n_steps, disk_of_stage_2(settings, network, pca_mat))
    whole = settings  # the rates go by its steps
    if fast_dev_run:
        settings, images = shortened(settings, images)
    sources = {"data": data, "weights": weights, "basis": None}
    with open_session(out, settings, ranks, is_kept=not fast_dev_run) as session:
        if found.weights is not None:
            from_arrays(network.get_parameters(), found.weights, f"WEIGHTS {str(weights)!r}")
        ranks.broadcast(list(network.get_parameters()))
        handover, search = share_handover(found.handover, ranks), settings.search
        run: Finish
        if search is not None:
            from dimred.stages.search import build_search_run

            run = build_search_run(
                session, settings, network, images, scores, sources, handover, found.basis, search, whole, n_steps
            )
        elif handover is not None:
            step = build_cooldown_step(whole, handover, network, n_steps, ranks)
            run = Finish(session, settings, network, step, images, scores, sources, handover)
        if not run.restore(allow_change or []):
            run.put_start(found.snapshots)
        run.run()


if __name__ == "__main__":
    run_program(stage_2, tell_refusal=tell_refusal)
