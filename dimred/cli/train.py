"""``dimred train`` starts a stage's ranks (``scripts/run_stage_{1,2}.sh`` call it)."""

import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dimred.console import Data, DeviceTargetIfGiven, FastDevRun, Overrides, Resume
from dimred.errors import ConfigError, number_of
from dimred.run_files.run_names import FULL_CHECKPOINT, PINS, SNAPSHOTS, STATES, named_weights, without_dots

_HOSTS = "Options for several hosts"


def _named(help_text: str) -> Any:
    return typer.Option(metavar="NAME", help=help_text)


def train(
    stage: Annotated[Literal["stage-1", "stage-2"], typer.Argument(metavar="STAGE", help="The stage to run.")],
    data: Data,
    weights: Annotated[
        Path | None,
        typer.Argument(metavar="[WEIGHTS]", help="For stage 2: stage 1's last full checkpoint."),
    ] = None,
    pca_mat: Annotated[
        Path | None,
        typer.Argument(metavar="[PCA_MAT]", help="For a search: pca_mat.npy; by default it is fitted."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file for both stages, or a recipe such as digits. By default stage 1 takes imagenet if DATA has "
            "ImageNet's 1,000 classes, and stage 2 takes stage 1's."
        ),
    ] = None,
    model: Annotated[str | None, _named("Network, yours as package.module:factory (model.name).")] = None,
    dataset: Annotated[str | None, _named("mnist, cifar10, cifar100, or yours (data.dataset).")] = None,
    loss: Annotated[str | None, _named("Your own loss, such as mindspore.nn:MSELoss (loss).")] = None,
    metric: Annotated[str | None, _named("Your own metric, package.module:factory (metric).")] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Devices on all hosts; by default all, or one CPU.",
        ),
    ] = None,
    device_target: DeviceTargetIfGiven = None,
    rank_table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rank table to follow; see dimred rank-table.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for device{rank}_stage_{1,2}.")] = Path(),
    go_on_from: Annotated[
        Path | None,
        typer.Option("--from", metavar="CHECKPOINT", help="Stage 1: begin a new run at this full checkpoint."),
    ] = None,
    resume: Resume = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what each rank would run.")] = False,
    fast_dev_run: FastDevRun = False,
    overrides: Overrides = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", rich_help_panel=_HOSTS, help="Number of hosts; start the same command on each."
        ),
    ] = None,
    node_rank: Annotated[
        int | None, typer.Option(metavar="N", rich_help_panel=_HOSTS, help="Number of this host, from 0.")
    ] = None,
    master_addr: Annotated[
        str | None, typer.Option(metavar="ADDRESS", rich_help_panel=_HOSTS, help="Address of host 0.")
    ] = None,
    master_port: Annotated[
        int | None,
        typer.Option(
            min=1024,
            max=65535,
            metavar="PORT",
            rich_help_panel=_HOSTS,
            help="Port of host 0; by default a free one, or 8118 with --nodes.",
        ),
    ] = None,
    stall_timeout: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="End if stuck for this long; 0: never."),
    ] = 1800,
) -> None:
    """Run stage 1 or stage 2, on one device or many, on one host or several.

    Stage 1 trains, and keeps a rolling series of weight snapshots. Stage 2 begins at WEIGHTS. Its method is a search in
    the subspace of the snapshots, or a cooldown, which brings the learning rate to 0. With --set method=cooldown, the
    file's settings for a search are ignored.

    On ctrl-C, SIGTERM or SIGUSR1 it saves and ends; the same command with --resume continues.

    Example: dimred train stage-1 ./digits --config digits

    Example: dimred train stage-2 ./digits device0_stage_1/checkpoint_stage_1/resnet_small-70_74.ckpt
    """
    from dimred.config import StageOneConfig, StageTwoConfig, config_file, load_config, recipe_names
    from dimred.launch.devices import choose_devices
    from dimred.launch.job import make_job
    from dimred.launch.launcher import launch

    if fast_dev_run and resume:
        raise ConfigError("--fast-dev-run runs in a new folder, where there is nothing to resume; leave --resume out")
    name = stage.replace("-", "_")
    model_of_config = StageOneConfig if stage == "stage-1" else StageTwoConfig
    goes_on = resume and any(out.glob(f"device*_{name}/{PINS}"))  # a run has begun, with its own configuration
    is_for_imagenet = stage == "stage-1" and config is None and not goes_on
    if is_for_imagenet:
        config = Path("imagenet")
    settings = overrides or []
    settings += _settings_of({"model.name": model, "data.dataset": dataset, "loss": loss, "metric": metric})
    if config is not None:  # otherwise the ranks find it in the stage 1 run, or in their own
        config = config_file(config)
        load_config(model_of_config, config, settings)
    _check_stage(stage, weights, go_on_from)
    # The other hosts read WEIGHTS and PCA_MAT under host 0's paths.
    _check_paths(data, go_on_from, None if node_rank else weights, None if node_rank else pca_mat)
    if is_for_imagenet:
        from dimred.data.image_checks import check_is_imagenet

        check_is_imagenet(data, recipe_names())
    if rank_table is None:
        device_target, devices = choose_devices(device_target, devices, nodes=nodes)
    else:
        device_target = device_target or "Ascend"  # only Ascend devices have a table
    arguments = [str(without_dots(path)) for path in (data, weights, pca_mat) if path is not None]
    arguments += _options_of_files({"--config": config, "--from": go_on_from})
    arguments += ["--device-target", device_target]
    arguments += [f"--set={setting}" for setting in settings]
    arguments += _flags({"--resume": resume, "--fast-dev-run": fast_dev_run})
    job = make_job(
        f"dimred.pipelines.{name}",
        name,
        arguments,
        out=out,
        devices=devices,
        device_target=device_target,
        rank_table=rank_table,
        nodes=nodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
    )
    if dry_run:
        print("\n".join(job.describe()))
    elif fast_dev_run:
        raise typer.Exit(_try_out(job, stall_timeout))
    else:
        raise typer.Exit(launch(job, resume=resume, stall_timeout_seconds=stall_timeout))


def _settings_of(values: Mapping[str, str | None]) -> Iterator[str]:
    """Yield ``key=value`` for each key that is given."""
    for key, value in values.items():
        if value:
            yield f"{key}={value}"


def _options_of_files(files: Mapping[str, Path | None]) -> Iterator[str]:
    """Yield each option that is given, and its file's absolute path."""
    for option, path in files.items():
        if path is not None:
            yield from (option, str(path.absolute()))


def _flags(options: Mapping[str, bool]) -> list[str]:
    return [option for option, is_given in options.items() if is_given]


def _check_stage(stage: str, weights: Path | None, go_on_from: Path | None) -> None:
    """Raise ConfigError if WEIGHTS or --from does not fit the stage."""
    if stage == "stage-2" and weights is None:
        raise ConfigError("WEIGHTS is missing; stage-2 begins with stage 1's last full checkpoint")
    if stage == "stage-2" and go_on_from is not None:
        raise ConfigError(f"--from is {str(go_on_from)!r}, but stage-2 begins with WEIGHTS; leave --from out")
    if stage == "stage-1" and weights is not None:
        raise ConfigError(f"WEIGHTS is {str(weights)!r}, but stage-1 takes DATA alone; leave it out")


def _check_paths(data: Path, go_on_from: Path | None, weights: Path | None, pca_mat: Path | None) -> None:
    """Raise ConfigError if a path does not exist, or if WEIGHTS or --from is not a full checkpoint."""
    paths = {"DATA": data, "--from": go_on_from, "WEIGHTS": weights, "PCA_MAT": pca_mat}
    absent = [argument for argument, path in paths.items() if path is not None and not path.exists()]
    if absent:
        raise ConfigError(
            "; ".join(f"{argument} is {str(paths[argument])!r}, which does not exist" for argument in absent)
        )
    if weights is not None and weights.suffix in (".npy", ".h5"):
        raise ConfigError(f"WEIGHTS is {str(weights)!r}, a basis; give a full checkpoint first, then the basis")
    for argument, path in (("--from", go_on_from), ("WEIGHTS", weights)):
        if path is not None and path.is_dir():
            raise ConfigError(
                f"{argument} is {str(path)!r}, which is a folder; give a full checkpoint, {FULL_CHECKPOINT}"
            )
    if weights is not None and weights.parent.name in (SNAPSHOTS, STATES):
        raise ConfigError(f"{named_weights('WEIGHTS', weights)} can't start stage 2")


def _try_out(job: Any, stall_timeout: float) -> int:
    """Launch a ``Job`` in a folder on the disk that the run would use, remove the folder, and report the outcome.

    Returns:
        The exit status of ``launch``.
    """
    from dimred.launch.launcher import launch

    disk = next(path for path in (job.out, *job.out.parents) if path.is_dir())
    # Several hosts need the same name for the folder, because rank 0 leaves a basis there for the others.
    name = f"{job.master_addr}-{job.master_port}" if job.nodes > 1 else secrets.token_hex(4)
    trial = replace(job, out=disk / f".dimred-fast-dev-run-{name}")
    start = time.perf_counter()
    status = 1
    try:
        status = launch(trial, stall_timeout_seconds=stall_timeout)
    finally:
        if status:
            print(f"fast dev run: {trial.out} is removed, with its logs", file=sys.stderr)
        for rank in trial.local_ranks:
            shutil.rmtree(trial.folder(rank), ignore_errors=True)
        with suppress(OSError):  # another host is not yet done
            trial.out.rmdir()
    if status == 0:
        seconds = time.perf_counter() - start
        ranks = number_of(job.devices, "rank")
        print(
            f"fast dev run: a step and everything around it went well on {ranks} in {seconds:.0f} s; nothing is kept. "
            "Without --fast-dev-run the same command does the whole run"
        )
    return status
