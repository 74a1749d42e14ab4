"""Stage 1: train a network the ordinary way and keep a rolling series of its weights.

python -m dimred.pipelines.stage_1 DATA --config pipelines/configs/digits_stage_1.yaml --out device0_stage_1
"""

import logging
from pathlib import Path
from typing import Annotated

import typer

from dimred.config import N_COMPONENTS, StageOneConfig, config_file, load_config, options_of_stage_2
from dimred.console import AllowChange, Data, DeviceTarget, FastDevRun, Overrides, Resume, run_program
from dimred.launch.channel import tell_refusal
from dimred.stages.checks import check_stage_1
from dimred.stages.device import set_precision, set_up
from dimred.stages.estimates import disk_of_stage_1, say_plan, shortened, snapshots_in_the_end
from dimred.stages.run_folder import open_session
from dimred.stages.stage_1 import Training
from dimred.stages.steps import build_train_step
from dimred.stages.task import build_network, build_scores, check_ranks, check_scores

_log = logging.getLogger("dimred")


def stage_1(
    data: Data,
    config: Annotated[Path, typer.Option(help="YAML file, see pipelines/configs.")],
    out: Annotated[Path, typer.Option(help="New folder for checkpoints and metrics.")] = Path("device0_stage_1"),
    go_on_from: Annotated[
        Path | None, typer.Option("--from", help="Begin a new run with this full checkpoint of another run.")
    ] = None,
    resume: Resume = False,
    allow_change: AllowChange = None,
    device_target: DeviceTarget = "CPU",
    fast_dev_run: FastDevRun = False,
    overrides: Overrides = None,
) -> None:
    """Train, and keep a rolling series of weight snapshots for stage 2."""
    settings = load_config(StageOneConfig, config, overrides or [])
    ranks = set_up(settings.seed, device_target, settings.all_reduce_split, settings.deterministic)
    set_precision(settings)
    network = build_network(settings)
    images, first = check_stage_1(settings, network, data, out, go_on_from, resume, ranks)
    check_ranks(ranks, settings, images["train"])
    scores = build_scores(settings)
    check_scores(settings, network, scores, images)
    say_plan(settings, settings.epochs, images["train"].steps_per_epoch, disk_of_stage_1(settings, network))
    n_snapshots = snapshots_in_the_end(settings, images["train"].steps_per_epoch)
    if n_snapshots == 0:
        _log.warning(
            f"this run keeps no snapshots, so stage 2 will have no averages to choose from: snapshots.first_epoch is "
            f"{settings.snapshots.first_epoch}, and epochs is {settings.epochs}"
        )
    elif n_snapshots <= N_COMPONENTS:
        needed = f"a search in {N_COMPONENTS} directions would need {N_COMPONENTS + 1}"
        _log.info(f"this run keeps {n_snapshots} snapshots; {needed}")
    # A user's own network may draw its weights from another generator.
    ranks.broadcast(list(network.get_parameters()))
    step = build_train_step(settings, network, images["train"].steps_per_epoch, ranks)
    if fast_dev_run:
        settings, images = shortened(settings, images)
    with open_session(out, settings, ranks, is_kept=not fast_dev_run) as session:
        stage_2 = options_of_stage_2(config_file(StageOneConfig, config), overrides or [])
        training = Training(session, settings, network, step, images, scores, data, stage_2)
        training.restore(first, allow_change or [])
        training.run()


if __name__ == "__main__":
    run_program(stage_1, tell_refusal=tell_refusal)
