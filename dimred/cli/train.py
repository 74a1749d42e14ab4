"""``dimred train`` (which ``scripts/run_stage_{1,2}.sh`` call) and ``dimred rank-table``: the ranks of a job."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from dimred.console import AllowChange, AsJson, Data, DeviceTarget, Overrides, Resume, Weights, refuse_existing
from dimred.errors import ConfigError

train = typer.Typer(no_args_is_help=True, help="Run stage 1 or stage 2 on one device or many, on one host or several.")
rank_table = typer.Typer(no_args_is_help=True, help="Make or check the table of ranks that Ascend hosts use.")


@dataclass(frozen=True)
class StageOptions:
    """What both stages can be told, as it is typed; the help of each stands here."""

    config: Annotated[Path | None, typer.Option(help="YAML file; the ImageNet recipe by default.")] = None
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Network; your own by package.module:factory. Sets model.name.")
    ] = None
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Your own data by package.module:factory. Sets data.dataset.")
    ] = None
    devices: Annotated[
        int | None, typer.Option(min=1, help="Devices on all hosts together; 8, or the rank table's.")
    ] = None
    device_target: DeviceTarget = "Ascend"
    rank_table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rank table to follow; see dimred rank-table.")
    ] = None
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the ranks' folders device{rank}_stage_{1,2}.")
    ] = Path()
    resume: Resume = False
    allow_change: AllowChange = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what each rank would run.")] = False
    overrides: Overrides = None
    nodes: Annotated[int | None, typer.Option(min=1, help="Hosts; start the same command on each.")] = None
    node_rank: Annotated[int | None, typer.Option(help="Number of this host, from 0.")] = None
    master_addr: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address of host 0.")] = None
    master_port: Annotated[
        int | None,
        typer.Option(min=1024, max=65534, help="A port of host 0 that is free, and the next one; 8118 usually."),
    ] = None
    stall_timeout: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="End a job that stands still so long, naming the rank; 0: never."),
    ] = 1800

    @property
    def all_overrides(self) -> list[str]:
        """``--set``, ``--model`` and ``--dataset`` as ``key=value`` each."""
        named = {"model.name": self.model, "data.dataset": self.dataset}
        return [*(self.overrides or []), *(f"{key}={value}" for key, value in named.items() if value is not None)]


def _with_stage_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that shows the fields of ``StageOptions`` as its own options, and gets them as ``options``."""
    own = [parameter for name, parameter in signature(command).parameters.items() if name != "options"]
    shared = signature(StageOptions).parameters

    def run(**typed: Any) -> None:
        options = StageOptions(**{name: typed.pop(name) for name in shared})
        command(**typed, options=options)

    run.__doc__ = command.__doc__
    run.__signature__ = Signature([*own, *shared.values()])  # type: ignore[attr-defined]
    return run


@train.command("stage-1")
@_with_stage_options
def stage_1(data: Data, options: StageOptions) -> None:
    """Train, and keep a rolling series of weight snapshots for the PCA.

    Example: dimred train stage-1 ./imagenet

    Example: dimred train stage-1 ./digits --config pipelines/configs/digits_stage_1.yaml --device-target CPU
    --devices 1
    """
    _run("stage_1", {"DATA": data}, options)


@train.command("stage-2")
@_with_stage_options
def stage_2(
    data: Data,
    weights: Weights,
    options: StageOptions,
    pca_mat: Annotated[
        Path | None, typer.Argument(metavar="[PCA_MAT]", help="Basis; fitted beside WEIGHTS if not given.")
    ] = None,
) -> None:
    """Search in the subspace of stage 1's snapshots, from their mean or from stage 1's last weights.

    Example: dimred train stage-2 ./imagenet device0_stage_1/checkpoint_stage_1/resnet50-70_625.ckpt
    """
    given = {} if pca_mat is None else {"PCA_MAT": pca_mat}
    _run("stage_2", {"DATA": data, "WEIGHTS": weights} | given, options)


def _run(stage: str, paths: dict[str, Path], options: StageOptions) -> None:
    """Check the configuration and the paths, start the ranks, and end as they end."""
    from importlib.resources import files

    from dimred.config import StageOneConfig, StageTwoConfig, load_config
    from dimred.launch.job import make_job
    from dimred.launch.launcher import launch

    config = options.config or Path(str(files("dimred.pipelines.configs"))) / f"imagenet_{stage}.yaml"
    load_config(StageOneConfig if stage == "stage_1" else StageTwoConfig, config, options.all_overrides)
    # Host 0 alone reads weights and basis.
    missing = [
        f"{name} is {str(path)!r}, which does not exist"
        for name, path in paths.items()
        if not path.exists() and (name == "DATA" or not options.node_rank)
    ]
    if missing:
        raise ConfigError("; ".join(missing))
    arguments = [*(str(path.absolute()) for path in paths.values()), "--config", str(config.absolute())]
    arguments += ["--device-target", options.device_target]
    arguments += [f"--set={override}" for override in options.all_overrides]
    arguments += ["--resume"] if options.resume else []
    arguments += [f"--allow-change={key}" for key in options.allow_change or []]
    job = make_job(
        f"dimred.pipelines.{stage}", stage, arguments,
        out=options.out, devices=options.devices, device_target=options.device_target, rank_table=options.rank_table,
        nodes=options.nodes, node_rank=options.node_rank,
        master_addr=options.master_addr, master_port=options.master_port,
    )  # fmt: skip
    sys.exit(launch(job, resume=options.resume, dry_run=options.dry_run, stall_timeout_seconds=options.stall_timeout))


@rank_table.command("make")
def make_table(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="File to write; must not exist.", callback=refuse_existing)
    ],
    device_ips: Annotated[
        str, typer.Option(help="The devices' addresses with commas between, server by server (hccn_tool shows them).")
    ],
    servers: Annotated[str, typer.Option(help="The servers' addresses with commas between.")] = "127.0.0.1",
) -> None:
    """Write a rank table. Example: dimred rank-table make table.json --servers 10.0.0.1 --device-ips 192.168.1.1,..."""
    from dimred.files.atomic import atomic_write
    from dimred.launch.rank_table import make_rank_table

    hosts, devices = ([part.strip() for part in text.split(",")] for text in (servers, device_ips))
    table = make_rank_table(hosts, devices)
    try:
        atomic_write(out, json.dumps(table, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"OUT is {str(out)!r}, which can't be written ({error.strerror})") from error
    print(f"{out}: {len(devices)} ranks on {len(hosts)} servers")


@rank_table.command("check")
def check_table(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="The JSON file.")],
    devices: Annotated[int | None, typer.Option(min=1, help="How many devices the job is to have.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a rank table, all of it at once; exit status 0 if it can be used.

    Example: dimred rank-table check rank_tables/rank_table_8pcs.json
    """
    from dimred.launch.rank_table import read_rank_table

    found = read_rank_table(table, devices)
    if as_json:
        print(json.dumps({"devices": [device._asdict() for device in found]}))
        return
    for device in found:
        print(f"rank {device.rank}: device {device.device_id} ({device.device_ip}) of server {device.server_id}")
