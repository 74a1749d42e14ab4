"""Stage 1: train a network the ordinary way and keep a rolling series of its weights.

python -m dimred.pipelines.stage_1 DATA --config pipelines/configs/digits.yaml --out device0_stage_1
"""

from pathlib import Path
from typing import Annotated

import typer

from dimred.config import StageOneConfig, load_config
from dimred.console import Data, DeviceTarget, FastDevRun, Overrides, Resume, run_program
from dimred.launch.channel import tell_refusal
from dimred.launch.devices import make_ready

From = Annotated[Path | None, typer.Option("--from", help="Begin a new run with this full checkpoint of another run.")]


def stage_1(
    data: Data,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="YAML file or recipe; by default imagenet.")
    ] = None,
    out: Annotated[Path, typer.Option(help="New folder for checkpoints and metrics.")] = Path("device0_stage_1"),
    go_on_from: From = None,
    resume: Resume = False,
    device_target: DeviceTarget = "CPU",
    fast_dev_run: FastDevRun = False,
    overrides: Overrides = None,
) -> None:
    """Train a network, and keep a rolling series of snapshots of its weights for stage 2."""
    make_ready(device_target)  # before MindSpore is imported
    from dimred.runs.begun import Begun
    from dimred.runs.device import set_precision, set_up
    from dimred.runs.run import open_run
    from dimred.runs.steps import build_train_step
    from dimred.runs.task import build_task
    from dimred.stages.checks import check_stage_1
    from dimred.stages.stage_1 import StageOne

    begun = Begun.open(out, StageOneConfig, config_file, overrides or []) if resume else None
    config = begun.config if begun else load_config(StageOneConfig, config_file or Path("imagenet"), overrides or [])
    ranks = set_up(config.seed, device_target, config.all_reduce_split, config.deterministic, config.mode)
    set_precision(config)
    task = build_task(config, data, ranks, is_checked=False)
    first, weights = check_stage_1(task, out, go_on_from, begun, resume=resume)
    step = build_train_step(config, task.network, task.steps_per_epoch, ranks)
    with open_run(out, task, begun, fast_dev_run) as run:
        StageOne(run, step, weights).go(first)


if __name__ == "__main__":
    run_program(stage_1, tell_refusal=tell_refusal)
