"""``dimred compare``: stage 2 beside what it has to beat."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from dimred.console import AsJson, Overrides, doing, heartbeat, note
from dimred.errors import ConfigError, FaultError, StoppedError
from dimred.files.run_names import CONFIG, STAGE_1_CHECKPOINTS, full_checkpoints


def compare(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Folder with train/, val/ and test/; {seed} stands for a run's seed.")
    ],
    config: Annotated[Path, typer.Option(help="Stage 2's YAML file, or a recipe such as digits.")],
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Folders of finished stage 1 runs, one a seed.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the results; what it has of an earlier call is not run again.")
    ] = Path("comparison"),
    seeds: Annotated[
        str | None, typer.Option(help="Instead of RUN: train stage 1 for each of these seeds, such as 1,2,3.")
    ] = None,
    stage_1_config: Annotated[Path | None, typer.Option(help="With --seeds: stage 1's YAML file, or a recipe.")] = None,
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
    every row. Where the configuration has no directions, the rows with directions have 32, or as many as the snapshots
    give. The same call goes on where an earlier one was cut off. Ends with a table, or with --json what
    OUT/compare.json holds; OUT/compare.html is the page, with test accuracy over passes.

    Example: dimred compare ./digits device0_stage_1 --config digits

    Example: dimred compare './digits_{seed}' --seeds 1,2,3 --stage-1-config digits --config digits
    """
    from dimred.config import StageOneConfig, StageTwoConfig, load_config

    two = load_config(StageTwoConfig, config, overrides or [])
    chosen = None if methods is None else [name.strip() for name in methods.split(",")]
    if bool(runs) == bool(seeds):
        raise ConfigError("give either the folders of stage 1 runs (RUN...), or --seeds with --stage-1-config")
    if bool(seeds) != bool(stage_1_config):
        raise ConfigError("--seeds and --stage-1-config, stage 1's YAML file, need each other")
    epochs = sorted(_numbers(at, "--at")) if at else []
    numbers = _numbers(seeds, "--seeds") if seeds else []
    from dimred.build.comparable import check_snapshots, claim_folder
    from dimred.launch.signals import StopSignals
    from dimred.pipelines.compare import check_choice
    from dimred.pipelines.compare import compare as make_comparison
    from dimred.report.comparison import markdown

    check_choice(chosen, epochs)
    found = list(runs or [])
    try:
        with heartbeat("preparing the comparison"), StopSignals():
            if seeds and stage_1_config:
                one = load_config(StageOneConfig, stage_1_config)
                check_snapshots(one, min(epochs, default=one.epochs), f"--stage-1-config {str(stage_1_config)!r}")
                claim_folder(out, two)
                found = [_trained_stage_1(data, seed, stage_1_config, epochs, out) for seed in numbers]
            summary = make_comparison(data, found, config, out, methods=chosen, at=epochs, overrides=overrides or [])
    except StoppedError as stop:
        raise StoppedError(stop.number, f"what is finished is in {out}; the same command goes on") from None
    if as_json:
        print(json.dumps(summary, indent=2))
        return
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(markdown(summary)))
    else:
        print(markdown(summary))
    print(f"{out / 'compare.md'}, {out / 'compare.json'}, {out / 'compare.html'}")


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} is {text!r}; give whole numbers with commas between, such as 1,2,3") from None


def _trained_stage_1(data: str, seed: int, config: Path, at: list[int], out: Path) -> Path:
    """The stage 1 of a seed; trained, or trained to its end, where it is not finished.

    With epochs ``at`` it goes to the last of them, also after an earlier call, leaves a full checkpoint at each, and
    keeps every snapshot.

    Raises:
        ConfigError: it is of another configuration, or past one of the epochs and left no full checkpoint there.
    """
    from dimred.build.comparable import check_same_stage_1, checkpoint_of
    from dimred.config import StageOneConfig, load_config

    run, end = out / f"seed_{seed}" / "stage_1", max(at, default=0)
    one = load_config(StageOneConfig, config)
    if (run / CONFIG).exists():
        check_same_stage_1(one, run)
        earlier = load_config(StageOneConfig, run / CONFIG).epochs
        reached = max(full_checkpoints(run / STAGE_1_CHECKPOINTS), default=0)
        for epoch in at:
            if epoch <= reached:
                checkpoint_of(run, epoch)
        if earlier >= end and earlier in full_checkpoints(run / STAGE_1_CHECKPOINTS):
            return run
        if at:
            at, end = [*at, earlier], max(end, earlier)
    note(f"seed {seed}: stage 1, see {run}.log")
    doing(f"seed {seed}: stage 1")
    run.parent.mkdir(exist_ok=True)
    own = data.replace("{seed}", str(seed))
    command = [sys.executable, "-m", "dimred.pipelines.stage_1", own, "--config", str(config)]
    command += ["--set", f"seed={seed}", "--out", str(run), "--resume"]
    if at:
        every = math.gcd(*at)
        taken = (end - one.snapshots.first_epoch + 1) * one.snapshots.per_epoch  # the first ones must last to the end
        saved = {"epochs": end, "checkpoints.every_epochs": every, "checkpoints.keep": end // every, "stop": "null"}
        saved["snapshots.keep"] = max(taken, one.snapshots.keep)
        for key, value in saved.items():
            command += [f"--set={key}={value}", f"--allow-change={key}"]
    status = run_logged(command, run.with_suffix(".log"))
    if status != 0:
        raise FaultError(f"stage 1 of seed {seed} ended with status {status}; {run}.log says why")
    return run


def run_logged(command: list[str], log: Path) -> int:
    """The status of a command that prints into a file. A signal ends it, and waits until it has saved its state."""
    with (
        log.open("a") as file,
        subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True) as process,
    ):
        try:
            return process.wait()
        except StoppedError:
            process.send_signal(signal.SIGINT)  # a terminal's ctrl-C does not reach another session
            process.wait()
            raise
