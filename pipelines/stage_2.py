"""Stage 2: continue a stage 1 with a method, and save the network.

python -m dimred.pipelines.stage_2 DATA WEIGHTS --out device0_stage_2
"""

from pathlib import Path
from typing import Annotated

import typer

from dimred.config import StageTwoConfig, load_config
from dimred.console import Data, DeviceTarget, FastDevRun, Overrides, Resume, Weights, run_program
from dimred.launch.channel import tell_refusal
from dimred.launch.devices import make_ready


def stage_2(
    data: Data,
    weights: Weights,
    pca_mat: Annotated[Path | None, typer.Argument(metavar="[PCA_MAT]", help="Basis of a search; else fitted.")] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="YAML file or recipe; by default stage 1's.")
    ] = None,
    resume: Resume = False,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="New folder for checkpoints and metrics.")] = Path("device0_stage_2"),
    device_target: DeviceTarget = "CPU",
    fast_dev_run: FastDevRun = False,
) -> None:
    """Continue a stage 1: search in the subspace of its snapshots, or cool its training down; save the network."""
    make_ready(device_target)  # before MindSpore is imported
    from dimred.runs.begun import Begun
    from dimred.runs.device import set_precision, set_up
    from dimred.runs.run import open_run
    from dimred.runs.task import build_task
    from dimred.stages.checks import check_stage_2
    from dimred.stages.parent import StageOneRun, config_beside
    from dimred.stages.stage_2 import build_stage_2

    begun = Begun.open(out, StageTwoConfig, config_file, overrides or []) if resume else None
    config = (
        begun.config if begun else load_config(StageTwoConfig, config_file or config_beside(weights), overrides or [])
    )
    ranks = set_up(config.seed, device_target, config.all_reduce_split, config.deterministic, config.mode)
    parent = StageOneRun.open_on_all(weights, ranks)
    config = config.with_epochs_after(parent.epoch)
    set_precision(config)
    task = build_task(config, data, ranks, is_checked=False)
    plan = check_stage_2(task, parent, pca_mat, out, begun, resume=resume)
    with open_run(out, task, begun, fast_dev_run) as run:
        build_stage_2(run, task, parent, plan).go()


if __name__ == "__main__":
    run_program(stage_2, tell_refusal=tell_refusal)
