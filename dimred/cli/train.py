"""``dimred train``: start a stage on all its ranks. ``scripts/run_stage_1.sh`` and ``run_stage_2.sh`` call it."""

import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from dimred.config import StageConfig, StageOneConfig, StageTwoConfig, load_config
from dimred.errors import ConfigError
from dimred.launch.job import make_job
from dimred.launch.launcher import launch

train = typer.Typer(no_args_is_help=True, help="Run stage 1 or stage 2 on one device or many, on one host or several.")

Data = Annotated[Path, typer.Argument(metavar="DATA", help="Folder with train/<class>/ and val/<class>/ images.")]
Weights = Annotated[Path, typer.Argument(metavar="WEIGHTS", help="Stage 1's last full checkpoint.")]
PcaMat = Annotated[Path | None, typer.Argument(metavar="[PCA_MAT]", help="Basis; fitted beside WEIGHTS if not given.")]
Config = Annotated[Path | None, typer.Option(help="YAML file; the ImageNet recipe by default.")]
Devices = Annotated[int | None, typer.Option(min=1, help="Devices on all hosts together; 8, or the rank table's.")]
Target = Annotated[Literal["Ascend", "CPU"], typer.Option(help="What the ranks compute on.")]
RankTable = Annotated[Path | None, typer.Option(metavar="FILE", help="Rank table to follow; see dimred rank-table.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder for the ranks' folders device{rank}_stage_{1,2}.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the results in --out.")]
AllowChange = Annotated[
    list[str] | None, typer.Option(metavar="KEY", help="With --resume: this key may differ from before.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what each rank would run.")]
Model = Annotated[
    str | None, typer.Option(metavar="NAME", help="The network; your own by package.module:factory. Sets model.name.")
]
Dataset = Annotated[
    str | None, typer.Option(metavar="NAME", help="Your own data by package.module:factory. Sets data.dataset.")
]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="key=value, over the configuration.")]
Nodes = Annotated[int | None, typer.Option(min=1, help="Hosts; start the same command on each.")]
NodeRank = Annotated[int | None, typer.Option(help="Number of this host, from 0.")]
MasterAddr = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address of host 0.")]
MasterPort = Annotated[
    int | None, typer.Option(min=1024, max=65534, help="A port of host 0 that is free, and the next one; 8118 usually.")
]
StallTimeout = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="End a job that stands still so long, naming the rank; 0: never."),
]


@train.command("stage-1")
def stage_1(
    data: Data,
    config: Config = None,
    model: Model = None,
    dataset: Dataset = None,
    devices: Devices = None,
    device_target: Target = "Ascend",
    rank_table: RankTable = None,
    out: Out = Path(),
    resume: Resume = False,
    allow_change: AllowChange = None,
    dry_run: DryRun = False,
    overrides: Overrides = None,
    nodes: Nodes = None,
    node_rank: NodeRank = None,
    master_addr: MasterAddr = None,
    master_port: MasterPort = None,
    stall_timeout: StallTimeout = 1800,
) -> None:
    """Train, and keep a rolling series of weight snapshots for the PCA.

    Example: dimred train stage-1 ./imagenet

    Example: dimred train stage-1 ./digits --config pipelines/configs/digits_stage_1.yaml --device-target CPU
    --devices 1
    """
    cluster = _Cluster(out, devices, device_target, rank_table, nodes, node_rank, master_addr, master_port)
    _run(
        StageOneConfig,
        "stage_1",
        [data],
        config,
        _own(model, dataset, overrides),
        cluster,
        resume,
        allow_change or [],
        dry_run,
        stall_timeout,
    )


@train.command("stage-2")
def stage_2(
    data: Data,
    weights: Weights,
    pca_mat: PcaMat = None,
    config: Config = None,
    model: Model = None,
    dataset: Dataset = None,
    devices: Devices = None,
    device_target: Target = "Ascend",
    rank_table: RankTable = None,
    out: Out = Path(),
    resume: Resume = False,
    allow_change: AllowChange = None,
    dry_run: DryRun = False,
    overrides: Overrides = None,
    nodes: Nodes = None,
    node_rank: NodeRank = None,
    master_addr: MasterAddr = None,
    master_port: MasterPort = None,
    stall_timeout: StallTimeout = 1800,
) -> None:
    """Search in the subspace of stage 1's snapshots, from their mean or from stage 1's last weights.

    Example: dimred train stage-2 ./imagenet device0_stage_1/checkpoint_stage_1/resnet50-70_625.ckpt
    """
    cluster = _Cluster(out, devices, device_target, rank_table, nodes, node_rank, master_addr, master_port)
    paths = [data, weights] if pca_mat is None else [data, weights, pca_mat]
    _run(
        StageTwoConfig,
        "stage_2",
        paths,
        config,
        _own(model, dataset, overrides),
        cluster,
        resume,
        allow_change or [],
        dry_run,
        stall_timeout,
    )


def _own(model: str | None, dataset: str | None, overrides: list[str] | None) -> list[str]:
    named = {"model.name": model, "data.dataset": dataset}
    return [*(overrides or []), *(f"{key}={value}" for key, value in named.items() if value is not None)]


class _Cluster(NamedTuple):
    """The options of ``make_job``, as they were typed."""

    out: Path
    devices: int | None
    device_target: Literal["CPU", "Ascend"]
    rank_table: Path | None
    nodes: int | None
    node_rank: int | None
    master_addr: str | None
    master_port: int | None


def _run(
    kind: type[StageConfig],
    stage: str,
    paths: list[Path],
    config: Path | None,
    overrides: list[str],
    cluster: _Cluster,
    resume: bool,
    allow_change: list[str],
    dry_run: bool,
    stall_timeout: float,
) -> None:
    """Check the configuration and the paths, start the ranks, and end as they end."""
    config = config or Path(str(files("dimred.pipelines.configs"))) / f"imagenet_{stage}.yaml"
    load_config(kind, config, overrides)
    read_here = paths[:1] if cluster.node_rank else paths  # host 0 alone reads weights and basis
    named = zip(("DATA", "WEIGHTS", "PCA_MAT"), read_here, strict=False)
    missing = [f"{name} is {str(path)!r}, which does not exist" for name, path in named if not path.exists()]
    if missing:
        raise ConfigError("; ".join(missing))
    arguments = [*(str(path.absolute()) for path in paths), "--config", str(config.absolute())]
    arguments += ["--device-target", cluster.device_target]
    arguments += [f"--set={override}" for override in overrides]
    arguments += ["--resume"] if resume else []
    arguments += [f"--allow-change={key}" for key in allow_change]
    job = make_job(f"dimred.pipelines.{stage}", stage, arguments, **cluster._asdict())
    sys.exit(launch(job, resume=resume, dry_run=dry_run, stall_timeout_seconds=stall_timeout))
