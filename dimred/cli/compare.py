"""``dimred compare``: stage 2 beside what it has to beat."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dimred.console import AsJson, Overrides, note
from dimred.errors import ConfigError
from dimred.files.run_names import CONFIG, STAGE_1_CHECKPOINTS, full_checkpoints

if TYPE_CHECKING:
    from dimred.config import StageTwoConfig


def compare(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Folder with train/, val/ and test/; {seed} stands for a run's seed.")
    ],
    config: Annotated[Path, typer.Option(help="Stage 2's YAML file.")],
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Folders of finished stage 1 runs, one a seed.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the results; what it has of an earlier call is not run again.")
    ] = Path("comparison"),
    seeds: Annotated[
        str | None, typer.Option(help="Instead of RUN: train stage 1 for each of these seeds, such as 1,2,3.")
    ] = None,
    stage_1_config: Annotated[Path | None, typer.Option(help="With --seeds: stage 1's YAML file.")] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these, such as swa,continued,cooldown. A wrong name shows all.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Epochs at which stage 1 is taken to end, such as 20,30,45; its last by default.")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare stage 2 with averages of the same snapshots and with plain training, from the same stage 1.

    The missing controls are trained here. The val split chooses, the test split reports, BatchNorm is re-estimated in
    every row. The same call goes on where an earlier one was cut off. With several epochs in --at OUT/curve.png shows
    test accuracy over passes. Ends with a table, or with --json what OUT/compare.json holds.

    Example: dimred compare ./digits device0_stage_1 --config pipelines/configs/digits_stage_2.yaml

    Example: dimred compare './digits_{seed}' --seeds 1,2,3 --stage-1-config one.yaml --config two.yaml
    """
    from dimred.config import StageOneConfig, StageTwoConfig, load_config
    from dimred.files.atomic import atomic_write
    from dimred.report.comparison import TITLES, collect, curves, markdown
    from dimred.report.plots import plot_curve, save_figure

    chosen = list(TITLES) if methods is None else [name.strip() for name in methods.split(",")]
    if unknown := [name for name in chosen if name not in TITLES]:
        raise ConfigError(f"--methods has {unknown[0]!r}; allowed: {', '.join(TITLES)}")
    two = load_config(StageTwoConfig, config, overrides or [])
    if bool(runs) == bool(seeds):
        raise ConfigError("give either the folders of stage 1 runs (RUN...), or --seeds with --stage-1-config")
    if seeds and stage_1_config is None:
        raise ConfigError("--seeds needs --stage-1-config, stage 1's YAML file")
    epochs = sorted(set(_numbers(at, "--at"))) if at else []
    if epochs and epochs[0] < 1:
        raise ConfigError(f"--at is {at!r}; give epochs from 1 on")
    numbers = _numbers(seeds, "--seeds") if seeds else []
    _claim(out, two)
    found = list(runs or [])
    if stage_1_config:
        load_config(StageOneConfig, stage_1_config)
        found += [_trained_stage_1(data, seed, stage_1_config, epochs, out) for seed in numbers]
    for run in found:
        _compare_run(data, run, two, epochs, out, chosen)
    summary = collect(out)
    atomic_write(out / "compare.json", json.dumps(summary, indent=2) + "\n")
    atomic_write(out / "compare.md", markdown(summary))
    if len(summary["at"]) > 1:
        save_figure(plot_curve(curves(summary)), out, "curve")
    if as_json:
        print(json.dumps(summary, indent=2))
        return
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(markdown(summary)))
    else:
        print(markdown(summary))
    print(f"{out / 'compare.md'}, {out / 'compare.json'}")


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} is {text!r}; give whole numbers with commas between, such as 1,2,3") from None


def _claim(out: Path, two: "StageTwoConfig") -> None:
    """Make the folder, or make sure that what is in it was made with the same configuration."""
    from dimred.config import StageTwoConfig, config_text, load_config
    from dimred.files.atomic import atomic_write

    if (out / CONFIG).exists():
        if load_config(StageTwoConfig, out / CONFIG) != two:
            raise ConfigError(
                f"--out is {str(out)!r}, which holds a comparison with other settings of stage 2; name another folder"
            )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out is {str(out)!r}, which holds something else; name another folder")
    else:
        out.mkdir(parents=True, exist_ok=True)
        atomic_write(out / CONFIG, config_text(two))


def _trained_stage_1(data: str, seed: int, config: Path, at: list[int], out: Path) -> Path:
    """The stage 1 of a seed; trained, or trained to its end, where it is not finished.

    With epochs ``at`` it goes to the last of them, and leaves a full checkpoint at each.
    """
    from dimred.config import StageOneConfig, load_config

    run = out / f"seed_{seed}" / "stage_1"
    if (run / CONFIG).exists():
        last = load_config(StageOneConfig, run / CONFIG).epochs
        if last in full_checkpoints(run / STAGE_1_CHECKPOINTS):
            return run
    note(f"seed {seed}: stage 1, see {run}.log")
    run.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "dimred.pipelines.stage_1", data.format(seed=seed), "--config", str(config)]
    command += ["--set", f"seed={seed}", "--out", str(run), "--resume"]
    if at:
        every = math.gcd(*at)
        saved = {
            "epochs": at[-1],
            "checkpoints.every_epochs": every,
            "checkpoints.keep": at[-1] // every,
            "stop": "null",
        }
        command += [f"--set={key}={value}" for key, value in saved.items()]
    with run.with_suffix(".log").open("a") as log:
        status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if status != 0:
        raise ConfigError(f"stage 1 of seed {seed} ended with status {status}; {run}.log says why")
    return run


def _compare_run(data: str, run: Path, two: "StageTwoConfig", epochs: list[int], out: Path, methods: list[str]) -> None:
    from dimred.config import StageOneConfig, load_config

    if not (run / CONFIG).is_file():
        raise ConfigError(f"RUN is {str(run)!r}, which has no {CONFIG}; give the folder of a finished stage 1 run")
    one = load_config(StageOneConfig, run / CONFIG)
    has_end = one.schedule.name != "constant"
    ended = max(full_checkpoints(run / STAGE_1_CHECKPOINTS), default=0) if one.stop else one.epochs
    for at in epochs or [ended]:
        folder = out / f"seed_{one.seed}" / f"at_{at}"
        folder.mkdir(parents=True, exist_ok=True)
        possible = [
            name for name in methods if name != "plain_to_the_end" or (has_end and at < one.schedule.total_epochs)
        ]
        if all((folder / f"{method}.json").exists() for method in possible):
            continue
        from dimred.pipelines.compare import compare_seed

        own = two.model_copy(update={"seed": one.seed})
        compare_seed(Path(data.format(seed=one.seed)), run, one, own, at, folder, possible)
