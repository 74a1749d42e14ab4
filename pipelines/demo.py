"""Run stage 1, the PCA and stage 2's search on the built-in digits, beside a cooldown and plain training.

bash scripts/demo.sh --out demo_out --seed 1
"""

import logging
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from dimred.config import StageTwoConfig, load_config
from dimred.console import DeviceTargetIfGiven, print_table, run_program
from dimred.errors import DimredError
from dimred.io.atomic import writable
from dimred.launch.device import Device
from dimred.launch.devices import DEVICES, choose_device
from dimred.launch.programs import start
from dimred.launch.signals import StopSignals
from dimred.report.page import Page, Picture, sentences, table
from dimred.report.plots import plot_curve
from dimred.report.run_page import PAGE, make_report_folder
from dimred.run_files.metric import ACCURACY, REESTIMATED
from dimred.run_files.metrics_file import read_metrics
from dimred.run_files.run_names import METRICS, RESULT, SNAPSHOTS, STAGE_1_CHECKPOINTS
from dimred.run_files.stage_two_result import AVERAGE, FINAL, START, StageTwoResult

_log = logging.getLogger("dimred")

# Recipes.
PUBLISHED = Path("digits")
COOLDOWN = Path("digits_cooldown")
_SNAPSHOTS = 40  # the fewest that stage 1 takes
_CHOOSING = 2  # a cooldown's choice among these snapshots costs this many epochs' worth of forward passes, rounded up
_DIMRED = (sys.executable, "-P", "-m", "dimred")
_PROGRAM = (sys.executable, "-P", "-m")
_HEADING = "Test accuracy, BatchNorm re-estimated in every row"


class Row(NamedTuple):
    """A network in the table: its name, its cost in passes, and its test accuracy."""

    name: str
    passes: float
    accuracy: float

    def cells(self) -> tuple[str, str, str]:
        """Return the row's texts."""
        return self.name, f"{self.passes:.1f}", f"{100 * self.accuracy:.2f} %"


def demo(
    out: Annotated[Path, typer.Option(help="New folder for everything the demo writes.")] = Path("demo_out"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of data, weights and order.")] = 1,
    epochs: Annotated[int, typer.Option(min=2, help="Epochs of stage 1; the rest follows from it.")] = 12,
    device_target: DeviceTargetIfGiven = None,
) -> None:
    """Search in 32 directions of the weights' PCA, beside a cooldown and plain training, on handwritten digits."""
    device = DEVICES[choose_device(device_target)]
    total = epochs + load_config(StageTwoConfig, COOLDOWN).with_epochs_after(epochs).n_epochs + _CHOOSING
    with writable("--out", out):
        out.mkdir(parents=True)
    out = out.resolve()
    with StopSignals(), ExitStack() as programs:
        _wait(start(programs, [*_DIMRED, "data", "digits", out / "data", "--seed", seed]))
        _train_all(programs, out, epochs, total, device, ["--set", f"seed={seed}"])
        for run in ("search", "cooldown"):
            command = [*_DIMRED, "report", out / run, "--out", out / f"report_{run}"]
            _wait(start(programs, [*command, "--device-target", device.target]))
        _show(out, epochs, total)


def _train_all(
    programs: ExitStack, out: Path, epochs: int, total: int, device: Device, overrides: Sequence[str]
) -> None:
    """Run stage 1, the PCA, both stage 2s, and plain training for ``total`` and for twice ``total`` passes.

    Each runs in its own process, with the program that the command line also runs. If processes can share the device,
    plain training runs at the same time.
    """
    beside = []
    data = out / "data"
    common = [*overrides, "--device-target", device.target]
    for n_epochs in (total, 2 * total):
        options = [f"schedule.total_epochs={n_epochs}", "snapshots.first_epoch=1000"]
        run = out / f"plain_{n_epochs}"
        command = _stage_1(data, run, PUBLISHED, n_epochs, options, common)
        _log.info(f"plain training for {n_epochs} epochs: {run}.log")
        beside.append(start(programs, command, run.with_suffix(".log")))
        if not device.is_shared:
            _wait(beside[-1])
    first = max(1, round(0.3 * epochs))
    per_epoch = math.ceil(_SNAPSHOTS / (epochs - first + 1))
    options = [f"snapshots.per_epoch={per_epoch}", f"snapshots.first_epoch={first}", "stop=null"]
    stage_1 = out / "device0_stage_1"
    matrix = out / "pca_mat.npy"
    _wait(start(programs, _stage_1(data, stage_1, COOLDOWN, epochs, options, common)))
    checkpoints = stage_1 / STAGE_1_CHECKPOINTS
    weights = next(checkpoints.glob(f"*-{epochs}_*.ckpt"))
    _wait(start(programs, [*_DIMRED, "pca", "--ckpt-dir", checkpoints / SNAPSHOTS, "--out", matrix]))
    for name, config, basis in (("search", PUBLISHED, [matrix]), ("cooldown", COOLDOWN, [])):
        positions = [data, weights, *basis, "--config", config]
        _wait(start(programs, [*_PROGRAM, "dimred.pipelines.stage_2", *positions, "--out", out / name, *common]))
    for program in beside:
        _wait(program)


def _stage_1(
    data: Path, run: Path, config: Path, epochs: int, options: Sequence[str], common: Sequence[str]
) -> list[Any]:
    every = f"evaluate_every_epochs={max(1, epochs // 6)}"  # for the picture; each evaluation costs two epochs' time
    warmup = f"schedule.warmup_epochs={min(5, epochs // 2)}"
    overrides = [f"--set={option}" for option in (f"epochs={epochs}", warmup, every, *options)]
    return [*_PROGRAM, "dimred.pipelines.stage_1", data, "--config", config, "--out", run, *common, *overrides]


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait for a command; raise DimredError if it failed."""
    if (status := process.wait()) != 0:
        raise DimredError(f"a command of the demo ended with status {status}: {process.args!r}")


def _show(out: Path, epochs: int, total: int) -> None:
    """Print the table and its sentence, and write both with the picture as a page."""
    search, cooldown = (StageTwoResult.read(out / run / RESULT) for run in ("search", "cooldown"))
    plain = {n: _accuracies(out / f"plain_{n}") for n in (total, 2 * total)}
    stage_1 = _accuracies(out / "device0_stage_1")
    # If no average beats the last weights, they take its place.
    average = cooldown.main.at(AVERAGE if AVERAGE in cooldown.main.by_point else START)
    rows = [
        Row("stage 1 at a constant rate", epochs, stage_1[epochs]),
        Row("stage 2 as published: search in 32 directions", epochs + search.passes, search.main.at(FINAL)),
        Row("stage 2 as a cooldown", epochs + cooldown.passes, cooldown.main.at(FINAL)),
        Row("the best average of stage 1's snapshots", epochs + cooldown.choosing_passes(AVERAGE), average),
        *(Row(f"plain training, schedule made for {n}", n, plain[n][n]) for n in plain),
    ]
    curves = {f"plain, made for {n}": accuracies for n, accuracies in plain.items()}
    curves |= {"stage 1, constant rate": stage_1, "stage 2: search": _points(search, epochs)}
    curves["stage 2: cooldown"] = _points(cooldown, epochs) | {rows[2].passes: rows[2].accuracy}  # what it chose
    curves["best average of the snapshots"] = {rows[3].passes: rows[3].accuracy}
    first, of_search, of_cooldown, _, same, _ = (row.cells() for row in rows)
    sentence = (
        f"Stage 1 reaches {first[2]} after {epochs} passes. The search brings it to {of_search[2]} after "
        f"{of_search[1]}, a cooldown of the learning rate to {of_cooldown[2]} after {of_cooldown[1]}. Plain training "
        f"with a schedule made for {total} passes reaches {same[2]}."
    )
    print(_HEADING)
    print_table(("what", "passes", "accuracy"), [row.cells() for row in rows])
    print(f"{sentence}\n\nreport: {_write_page(out / 'report', rows, curves, sentence, total)}", flush=True)


def _write_page(
    folder: Path, rows: Sequence[Row], curves: Mapping[str, Mapping[float, float]], sentence: str, total: int
) -> Path:
    """Write the table and the picture as a page with links to both stage 2 pages; return its path."""
    points = {
        name: [
            {"passes": passes, "test_reestimated": {"mean": accuracy, "spread": None}}
            for passes, accuracy in accuracies.items()
            if passes >= total / 3  # without the steep beginning, which would make the rest look flat
        ]
        for name, accuracies in curves.items()
    }
    make_report_folder(folder, "bash scripts/demo.sh")
    page = Page(folder, PAGE)
    caption = "Test accuracy over passes, BatchNorm re-estimated in every point."
    page.add(_HEADING, [], table(("what", "passes", "accuracy"), [row.cells() for row in rows]))
    page.add("Over passes", [Picture("accuracy", plot_curve(points, size=(8, 4.5)), sentence, caption)])
    links = "; ".join(
        f'<a href="../report_{run}/{PAGE}">the page of {what}</a>'
        for run, what in (("search", "the search"), ("cooldown", "the cooldown"))
    )
    return page.write("Both stages on handwritten digits", f"{sentences([sentence], 'verdict')}<p>See {links}.</p>")


def _points(result: StageTwoResult, epochs: int) -> dict[float, float]:
    """Return passes -> accuracy for a stage 2 that began after ``epochs`` passes: at its start and after each epoch."""
    points = {0: result.main.by_point[START]} | result.by_epoch
    return {epochs + result.training_passes(epoch): values[REESTIMATED] for epoch, values in points.items()}


def _accuracies(run: Path) -> dict[float, float]:
    """Read a stage 1's accuracies by epoch, with re-estimated statistics."""
    records = read_metrics(run / METRICS)
    return {record["epoch"]: record["metrics"][ACCURACY.name][REESTIMATED] for record in records if record["metrics"]}


if __name__ == "__main__":
    run_program(demo)
