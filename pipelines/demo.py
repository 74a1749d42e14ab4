"""Run both stages on the built-in digits beside plain training; make a table, a sentence, a picture and a report.

bash scripts/demo.sh --out demo_out --seed 1
"""

import logging
import math
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from dimred.config import StageTwoConfig, load_config
from dimred.console import print_table, run_program
from dimred.errors import DimredError
from dimred.io.atomic import writable
from dimred.io.checksums import read_checksummed
from dimred.io.metrics_file import read_metrics
from dimred.io.run_names import METRICS, RESULT, STAGE_1_CHECKPOINTS
from dimred.launch.channel import StopSignals
from dimred.launch.processes import start
from dimred.report.plots import plot_curve, save_figure
from dimred.report.record import choosing_passes, passes_of, training_passes

_log = logging.getLogger("dimred")

_CONFIGS = Path(__file__).parent / "configs"
STAGE_1, STAGE_2 = _CONFIGS / "digits_anytime_1.yaml", _CONFIGS / "digits_anytime_2.yaml"
PLAIN = _CONFIGS / "digits_stage_1.yaml"
_SNAPSHOTS = 40  # at least
_CHOOSING = 2  # epochs' worth of forward passes, rounded up, with which stage 2 chooses among that many snapshots
_DIMRED, _PROGRAM = Path(sys.executable).with_name("dimred"), (sys.executable, "-m")


def demo(
    out: Annotated[Path, typer.Option(help="New folder for everything the demo writes.")] = Path("demo_out"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of data, weights and order.")] = 1,
    epochs: Annotated[int, typer.Option(min=2, help="Epochs of stage 1; the rest follows from it.")] = 12,
) -> None:
    """Train both stages on noisy handwritten digits, beside plain training of as many passes and of twice as many."""
    total = epochs + load_config(StageTwoConfig, STAGE_2).with_epochs_after(epochs).n_epochs + _CHOOSING
    with writable("--out", out):
        out.mkdir(parents=True)
    out = out.resolve()
    with StopSignals(), ExitStack() as running:
        _wait(start(running, [_DIMRED, "data", "digits", out / "data", "--seed", seed]))
        _train_all(running, out, epochs, total, ["--set", f"seed={seed}"])
        _show(out, epochs, total)
        _wait(start(running, [_DIMRED, "report", out / "device0_stage_2", "--out", out / "report"]))


def _train_all(running: ExitStack, out: Path, epochs: int, total: int, common: Sequence[str]) -> None:
    """Run both stages, and at the same time plain training for as many passes and for twice as many.

    Each runs in a process of its own, by the program that the command line runs too.
    """
    beside, data = [], out / "data"
    for n_epochs in (total, 2 * total):
        made = [f"schedule.total_epochs={n_epochs}", "snapshots.first_epoch=1000"]
        run = out / f"plain_{n_epochs}"
        beside.append(start(running, _stage_1(data, run, PLAIN, n_epochs, made, common), run.with_suffix(".log")))
        _log.info(f"plain training of {n_epochs} epochs: {run}.log")
    first = max(1, round(0.3 * epochs))
    per_epoch = math.ceil(_SNAPSHOTS / (epochs - first + 1))
    taken = [f"snapshots.per_epoch={per_epoch}", f"snapshots.first_epoch={first}", "stop=null"]
    stage_1, stage_2 = out / "device0_stage_1", out / "device0_stage_2"
    _wait(start(running, _stage_1(data, stage_1, STAGE_1, epochs, taken, common)))
    weights = next((stage_1 / STAGE_1_CHECKPOINTS).glob(f"*-{epochs}_*.ckpt"))
    command = [*_PROGRAM, "dimred.pipelines.stage_2", data, weights, "--config", STAGE_2, "--out", stage_2, *common]
    _wait(start(running, command))
    for training in beside:
        _wait(training)


def _stage_1(
    data: Path, run: Path, config: Path, epochs: int, options: Sequence[str], common: Sequence[str]
) -> list[Any]:
    every = f"evaluate_every={max(1, epochs // 6)}"  # for the picture; an evaluation costs as much as two epochs
    warmup = f"schedule.warmup_epochs={min(5, epochs // 2)}"
    made = [f"--set={option}" for option in (f"epochs={epochs}", warmup, every, *options)]
    return [*_PROGRAM, "dimred.pipelines.stage_1", data, "--config", config, "--out", run, *common, *made]


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait for a command; raise DimredError if it failed."""
    if (status := process.wait()) != 0:
        raise DimredError(f"a command of the demo ended with status {status}: {process.args!r}")


def _show(out: Path, epochs: int, total: int) -> None:
    """Draw the picture, and print the table and its sentence; BatchNorm is re-estimated in every row and point."""
    found = read_checksummed(out / "device0_stage_2" / RESULT)
    points = found["accuracy_reestimated_by_point"]
    average = found.get("accuracy_average", points["start"])  # no average is better than the last weights
    plain = {n: _accuracies(out / f"plain_{n}") for n in (total, 2 * total)}
    stage_1 = _accuracies(out / "device0_stage_1")
    stage_2 = {epochs + training_passes(found, 0 if name == "start" else int(name)): points[name] for name in points}
    ours, same, twice = found["accuracy_reestimated"], plain[total][total], plain[2 * total][2 * total]
    rows = [
        ("stage 1 at a constant rate", epochs, stage_1[epochs]),
        ("  the best average of its snapshots", epochs + choosing_passes(found, "average"), average),
        ("  stage 2", epochs + passes_of(found), ours),
        (f"plain training, schedule made for {total}", total, same),
        (f"plain training, schedule made for {2 * total}", 2 * total, twice),
    ]
    curves = {f"plain, made for {n}": accuracies for n, accuracies in plain.items()}
    curves |= {"stage 1, constant rate": stage_1, "stage 2": stage_2}
    stage_2[rows[2][1]] = ours  # once it is chosen
    curves["best average of stage 1's snapshots"] = {rows[1][1]: average}
    drawn = {
        name: [
            {"passes": passes, "test_reestimated": {"mean": accuracy, "spread": None}}
            for passes, accuracy in accuracies.items()
            if passes >= total / 3  # without the steep beginning, beside which the rest would look flat
        ]
        for name, accuracies in curves.items()
    }
    save_figure(plot_curve(drawn, size=(8, 4.5)), out, "accuracy")
    print("Test accuracy, BatchNorm re-estimated in every row")
    print_table(
        ("what", "passes", "accuracy"),
        [(what, f"{passes:.1f}", f"{100 * accuracy:.2f} %") for what, passes, accuracy in rows],
    )
    print(
        f"After {rows[2][1]:.1f} passes both stages reach {100 * ours:.2f} %; plain training with a schedule made for "
        f"{total} passes reaches {100 * same:.2f} %, with one made for {2 * total} {100 * twice:.2f} %.\n\n"
        f"picture: {out / 'accuracy.png'}",
        flush=True,
    )


def _accuracies(run: Path) -> dict[float, float]:
    """Read the re-estimated accuracies of a stage 1 by epoch."""
    records = read_metrics(run / METRICS)
    return {record["epoch"]: record["accuracy_reestimated"] for record in records if "accuracy_reestimated" in record}


if __name__ == "__main__":
    run_program(demo)
