"""The whole of it on the built-in digits: both stages, the controls, one table, one picture.

bash scripts/demo.sh --out demo_out --seed 1
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.console import run_program
from dimred.errors import ConfigError, DimredError, RunError
from dimred.files.atomic import atomic_write
from dimred.files.checksummed_json import read_checksummed, write_checksummed
from dimred.files.run_names import BASIS, METRICS, PHASES, RESULT, SNAPSHOTS, STAGE_1_CHECKPOINTS
from dimred.report.plots import plot_accuracy, save_figure
from dimred.run.folder import run_folder
from dimred.run.metrics import read_metrics

_CONFIGS = Path(__file__).parent / "configs"
STAGE_1, STAGE_2 = _CONFIGS / "digits_stage_1.yaml", _CONFIGS / "digits_stage_2.yaml"
COMPARED_EPOCHS = (70, 72, 80, 90)


def demo(
    out: Annotated[Path, typer.Option(help="New folder for everything the demo writes.")] = Path("demo_out"),
    seed: Annotated[int, typer.Option(min=0, help="Of data, weights and order.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the demo in --out, if there is one.")] = False,
) -> None:
    """Train both stages on noisy handwritten digits, and compare with plain training and plain averaging."""
    one = load_config(StageOneConfig, STAGE_1)
    two = load_config(StageTwoConfig, STAGE_2)
    with run_folder(out, resume=resume):
        _run(out.resolve(), seed, one, two, resume)


def _run(out: Path, seed: int, one: StageOneConfig, two: StageTwoConfig, resume: bool) -> None:
    clock = _Phases(out, seed)
    data, seeding = str(out / "data"), ["--set", f"seed={seed}"]
    seeded = [*seeding, "--resume"] if resume else seeding
    stage_1_out, stage_2_out, plain_out = out / "device0_stage_1", out / "device0_stage_2", out / "plain_to_the_end"
    snapshots = stage_1_out / STAGE_1_CHECKPOINTS / SNAPSHOTS
    matrix = out / BASIS

    if not (out / "data").exists():  # it appears whole
        clock.run("data", _dimred("data", "digits", data, "--seed", str(seed)))
    clock.run("stage_1", _stage("stage_1", data, "--config", STAGE_1, "--out", stage_1_out, *seeded))
    weights = next((stage_1_out / STAGE_1_CHECKPOINTS).glob(f"*-{one.epochs}_*.ckpt"))
    clock.run("pca", _dimred("pca", "--ckpt-dir", snapshots, "--n-components", two.n_components, "--out", matrix))
    clock.run("stage_2", _stage("stage_2", data, weights, matrix, "--config", STAGE_2, "--out", stage_2_out, *seeded))
    averaged = out / "average.ckpt"
    if not averaged.exists():  # so does this
        clock.run("average", _dimred("average", snapshots, weights, averaged))
    accuracies = clock.run(
        "evaluate", _dimred("eval", data, averaged, "--config", STAGE_2, "--json", *seeding), read=True
    )
    end = one.schedule.total_epochs
    go_on = ["--set", f"epochs={end}", "--set", f"snapshots.first_epoch={end + 1}"]
    clock.run(
        "plain_to_the_end",
        _stage("stage_1", data, "--config", STAGE_1, "--from", weights, "--out", plain_out, *go_on, *seeded),
    )
    page = clock.run("report", _dimred("report", stage_2_out, "--out", out / "report"), read=True)
    first, last = read_metrics(stage_1_out / METRICS), read_metrics(plain_out / METRICS)
    plain = {record["epoch"]: record["accuracy"] for record in first + last}
    found = read_checksummed(stage_2_out / RESULT)
    summary = {
        "seed": seed,
        "plain": {str(epoch): accuracy for epoch, accuracy in plain.items()},
        "average": json.loads(accuracies),
        "stage_2": {key: value for key, value in found.items() if key not in ("basis", "seconds", "sources")},
        "basis": found["basis"],
        "seconds": clock.seconds,
    }
    atomic_write(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    searched = {one.epochs: found["accuracy_start"]}
    searched |= {one.epochs + int(epoch): accuracy for epoch, accuracy in found["accuracy_by_epoch"].items()}
    average = summary["average"]["accuracy_reestimated"]
    save_figure(plot_accuracy(plain, searched, (one.snapshots.first_epoch, one.epochs), average), out, "accuracy")
    seconds_per_epoch = {record["epoch"]: record["seconds"] for record in first + last}
    _print_table(summary, seconds_per_epoch, one.epochs)
    print(f"\nsummary: {out / 'summary.json'}\npicture: {out / 'accuracy.png'}\n{page}", end="")


class _Phases:
    """Runs each phase as the command a person would type, and keeps its wall seconds and what it printed."""

    def __init__(self, out: Path, seed: int) -> None:
        self._file = out / PHASES
        self._done: dict[str, Any] = {"seed": seed, "seconds": {}, "printed": {}}
        if self._file.exists():
            try:
                self._done = read_checksummed(self._file)
            except ValueError as error:
                raise RunError(f"{self._file} is damaged: {error}; begin in another folder") from None
            if self._done["seed"] != seed:
                raise ConfigError(f"--seed is {seed}, but the demo in {str(out)!r} was begun with {self._done['seed']}")
        write_checksummed(self._file, self._done)
        self.seconds: dict[str, float] = self._done["seconds"]  # by phase

    def run(self, phase: str, command: Sequence[str], read: bool = False) -> str:
        """Run it; with ``read`` return what it printed."""
        is_done = phase in self.seconds
        print(f"\n== {phase.replace('_', ' ')}{': done already' if is_done else ''}", flush=True)
        if not is_done:
            started = time.perf_counter()
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE if read else None, text=True)
            if done.returncode != 0:
                raise DimredError(f"the demo's phase {phase!r} ended with status {done.returncode}; see above")
            self.seconds[phase] = round(time.perf_counter() - started, 2)
            self._done["printed"][phase] = done.stdout or ""
            write_checksummed(self._file, self._done)
        return str(self._done["printed"][phase])


def _dimred(*arguments: Any) -> list[str]:
    return [str(Path(sys.executable).with_name("dimred")), *map(str, arguments)]


def _stage(program: str, *arguments: Any) -> list[str]:
    return [sys.executable, "-m", f"dimred.pipelines.{program}", *map(str, arguments)]


def _print_table(summary: dict[str, Any], seconds_per_epoch: dict[int, float], branch_epoch: int) -> None:
    stage_2, seconds, average = summary["stage_2"], summary["seconds"], summary["average"]

    def training(epochs: int) -> float:
        return sum(seconds for epoch, seconds in seconds_per_epoch.items() if epoch <= epochs)

    averaging = training(branch_epoch) + seconds.get("average", 0) + seconds["evaluate"]
    searching = training(branch_epoch) + seconds["pca"] + seconds["stage_2"]
    end = branch_epoch + stage_2["epochs"]
    kept = str(stage_2["kept"])
    kept = f"epoch {branch_epoch + int(kept)}" if kept.isdecimal() else kept.replace("start", "its start")
    rows = [
        *(("plain training", epoch, summary["plain"][str(epoch)], training(epoch)) for epoch in COMPARED_EPOCHS),
        ("average of the snapshots", branch_epoch, average["accuracy_reestimated"], averaging),
        (f"stage 2, from {stage_2['started_from']}, kept {kept}", end, stage_2["accuracy"], searching),
        ("  BatchNorm re-estimated", end, stage_2["accuracy_reestimated"], searching),
    ]
    table = Table(title=f"Test accuracy, seed {summary['seed']}")
    for name in ("what", "epochs", "accuracy", "seconds"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for what, epochs, accuracy, spent in rows:
        table.add_row(what, str(epochs), f"{100 * accuracy:.2f} %", f"{spent:.0f}")
    Console().print(table)


if __name__ == "__main__":
    run_program(demo)
