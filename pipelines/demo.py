"""The whole of it on the built-in digits: both stages beside plain training, one table, one picture, one sentence.

bash scripts/demo.sh --out demo_out --seed 1
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dimred.config import StageTwoConfig, load_config
from dimred.console import note, run_program
from dimred.errors import ConfigError, DimredError, RunError, StoppedError
from dimred.files.atomic import atomic_write
from dimred.files.checksummed_json import read_checksummed, write_checksummed
from dimred.files.metrics_file import read_metrics
from dimred.files.run_names import METRICS, PHASES, RESULT, STAGE_1_CHECKPOINTS
from dimred.launch.signals import StopSignals
from dimred.report.plots import plot_curve, save_figure
from dimred.report.record import passes_of
from dimred.run.folder import run_folder

_CONFIGS = Path(__file__).parent / "configs"
STAGE_1, STAGE_2 = _CONFIGS / "digits_anytime_1.yaml", _CONFIGS / "digits_anytime_2.yaml"
PLAIN = _CONFIGS / "digits_stage_1.yaml"
_SNAPSHOTS = 40  # at least


def demo(
    out: Annotated[Path, typer.Option(help="New folder for everything the demo writes.")] = Path("demo_out"),
    seed: Annotated[int, typer.Option(min=0, help="Of data, weights and order.")] = 1,
    epochs: Annotated[int, typer.Option(min=2, help="Of stage 1; the rest follows from it.")] = 12,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the demo in --out, if there is one.")] = False,
) -> None:
    """Train both stages on noisy handwritten digits, beside plain training of as many passes and of twice as many."""
    try:
        with run_folder(out, resume=resume), StopSignals():
            _Demo(out.resolve(), seed, epochs, resume).run()
    except StoppedError as stop:
        raise StoppedError(stop.number, "the same command with --resume goes on") from None


class _Demo:
    """Both stages run in one process after another, and the plain trainings beside them."""

    def __init__(self, out: Path, seed: int, epochs: int, resume: bool):
        self.out, self.epochs = out, epochs
        self.data = out / "data"
        self.phases = _Phases(out, {"seed": seed, "epochs": epochs})
        self.seed = ["--set", f"seed={seed}"]
        self.resume = ["--resume"] if resume else []
        self.total = epochs + load_config(StageTwoConfig, STAGE_2).with_epochs_after(epochs).n_epochs

    def run(self) -> None:
        """Run what is not done yet, and show what was found."""
        if not self.data.exists():  # it appears whole
            self.phases.run("data", _dimred("data", "digits", self.data, "--seed", self.phases.options["seed"]))
        with ThreadPoolExecutor(1) as beside:
            plain = {total: beside.submit(self._plain, total) for total in (self.total, 2 * self.total)}
            try:
                self._both_stages()
                for total, training in plain.items():
                    self._evaluate(f"plain_{total}", training.result())
            finally:
                self.phases.stop()
        found = read_checksummed(self.out / "device0_stage_2" / RESULT)
        rows = list(self._rows(found))
        summary = {
            "seed": self.phases.options["seed"],
            "rows": rows,
            "stage_2": {key: value for key, value in found.items() if key not in ("seconds", "sources")},
            "seconds": self.phases.seconds,
        }
        atomic_write(self.out / "summary.json", json.dumps(summary, indent=2) + "\n")
        save_figure(plot_curve(self._curves(found)), self.out, "accuracy")
        _show(rows)
        print(f"\nsummary: {self.out / 'summary.json'}\npicture: {self.out / 'accuracy.png'}")
        print(self.phases.printed["report"], end="")

    def _both_stages(self) -> None:
        first = max(1, round(0.3 * self.epochs))
        per_epoch = math.ceil(_SNAPSHOTS / (self.epochs - first + 1))
        taken = [f"snapshots.per_epoch={per_epoch}", f"snapshots.first_epoch={first}", "stop=null"]
        weights = self._train("device0_stage_1", STAGE_1, self.epochs, taken)
        out = self.out / "device0_stage_2"
        options = ["--config", STAGE_2, "--out", out, *self.seed, *self.resume]
        self.phases.run("device0_stage_2", _program("stage_2", self.data, weights, *options))
        self._evaluate("device0_stage_1", weights)
        self.phases.run("report", _dimred("report", out, "--out", self.out / "report"), read=True)

    def _plain(self, total: int) -> Path:
        """Plain training with a schedule made for so many passes."""
        name, made = f"plain_{total}", [f"schedule.total_epochs={total}", "snapshots.first_epoch=1000"]
        return self._train(name, PLAIN, total, made, log=self.out / f"{name}.log")

    def _train(self, name: str, config: Path, epochs: int, options: Sequence[str], log: Path | None = None) -> Path:
        warmup = min(5, epochs // 2)
        shown = f"evaluate_every={max(1, epochs // 6)}"  # for the picture; an evaluation costs as much as an epoch
        made = [
            f"--set={option}" for option in (f"epochs={epochs}", f"schedule.warmup_epochs={warmup}", shown, *options)
        ]
        run = ["--config", config, "--out", self.out / name, *self.seed, *self.resume, *made]
        self.phases.run(name, _program("stage_1", self.data, *run), log=log)
        return next((self.out / name / STAGE_1_CHECKPOINTS).glob(f"*-{epochs}_*.ckpt"))

    def _evaluate(self, name: str, weights: Path) -> None:
        command = _dimred("eval", self.data, weights, "--config", STAGE_2, "--json", *self.seed)
        self.phases.run(f"evaluate {name}", command, read=True)

    def _rows(self, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What the table shows, BatchNorm re-estimated in every row."""

        def reestimated(name: str) -> float:
            return float(json.loads(self.phases.printed[f"evaluate {name}"])["accuracy_reestimated"])

        yield _row("stage 1 at a constant rate", self.epochs, reestimated("device0_stage_1"))
        yield _row("  the best average of its snapshots", self.epochs, _accuracy_of_average(found))
        yield _row("  stage 2", self.epochs + passes_of(found, found["epochs"]), found["accuracy_reestimated"])
        for total in (self.total, 2 * self.total):
            yield _row(f"plain training, schedule made for {total}", total, reestimated(f"plain_{total}"))

    def _curves(self, found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Accuracy on the way, from a third of the shorter training on."""
        curves = {
            f"plain, made for {total}": self._accuracies(f"plain_{total}") for total in (self.total, 2 * self.total)
        }
        points = {0: found["accuracy_start"]} | {
            int(epoch): value for epoch, value in found["accuracy_by_epoch"].items()
        }
        searched = [_row("", self.epochs + passes_of(found, epoch), value) for epoch, value in points.items()]
        curves |= {"stage 1, constant rate": self._accuracies("device0_stage_1"), "stage 2": searched}
        curves["best average of stage 1's snapshots"] = [_row("", self.epochs, _accuracy_of_average(found))]
        return {
            name: [
                {"passes": row["passes"], "test_reestimated": {"mean": row["accuracy"], "spread": None}}
                for row in rows
                if row["passes"] >= self.total / 3
            ]
            for name, rows in curves.items()
        }

    def _accuracies(self, name: str) -> list[dict[str, Any]]:
        records = read_metrics(self.out / name / METRICS)
        return [_row(name, record["epoch"], record["accuracy"]) for record in records if record.get("accuracy")]


def _accuracy_of_average(found: dict[str, Any]) -> float:
    """Of the best average; of the last weights, where no average was better."""
    return float(found.get("accuracy_average", found["accuracy_start"]))


def _row(what: str, passes: float, accuracy: float) -> dict[str, Any]:
    return {"what": what, "passes": passes, "accuracy": accuracy}


class _Phases:
    """Runs each phase as the command a person would type, and keeps its wall seconds and what it printed.

    Two threads may run phases at the same time.

    Args:
        out: of the demo.
        options: what an earlier call must have been given, too.
    """

    def __init__(self, out: Path, options: dict[str, int]) -> None:
        self._file, self._lock = out / PHASES, Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False
        self._done: dict[str, Any] = {"options": options, "seconds": {}, "printed": {}}
        if self._file.exists():
            try:
                self._done = read_checksummed(self._file)
            except ValueError as error:
                raise RunError(f"{self._file} is damaged: {error}; begin in another folder") from None
            for name, value in options.items():
                if (before := self._done["options"][name]) != value:
                    raise ConfigError(f"--{name} is {value}, but the demo in {str(out)!r} was begun with {before}")
        write_checksummed(self._file, self._done)
        self.options = options
        self.seconds: dict[str, float] = self._done["seconds"]  # by phase
        self.printed: dict[str, str] = self._done["printed"]

    def run(self, phase: str, command: Sequence[str], *, read: bool = False, log: Path | None = None) -> None:
        """Run it; with ``read`` keep what it prints, with ``log`` put it into that file.

        Raises:
            DimredError: it failed.
        """
        is_done = phase in self.seconds
        where = f", see {log}" if log and not is_done else ""
        note(f"== {phase.replace('_', ' ')}{': done already' if is_done else ''}{where}")
        if is_done:
            return
        started = time.perf_counter()
        status, printed = self._call(command, read, log)
        if status != 0:
            raise DimredError(f"the demo's phase {phase!r} ended with status {status}; see {log or 'above'}")
        with self._lock:
            self.seconds[phase] = round(time.perf_counter() - started, 2)
            self.printed[phase] = printed or ""
            write_checksummed(self._file, self._done)

    def stop(self) -> None:
        """End what is still running, which may save, so that a fault in one thread ends the other."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()
            for process in self._running:
                process.wait()

    def _call(self, command: Sequence[str], read: bool, log: Path | None) -> tuple[int, str]:
        with self._lock:
            if self._stopped:
                raise DimredError("the demo was stopped")
            shown = log.open("a") if log else None
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE if read else shown, stderr=shown, text=True, start_new_session=True
            )  # ctrl-C reaches the demo alone, which ends them
            self._running.add(process)
        printed, _ = process.communicate()
        with self._lock:
            self._running.discard(process)
        if shown:
            shown.close()
        return process.returncode, printed


def _dimred(*arguments: Any) -> list[str]:
    return [str(Path(sys.executable).with_name("dimred")), *map(str, arguments)]


def _program(name: str, *arguments: Any) -> list[str]:
    return [sys.executable, "-m", f"dimred.pipelines.{name}", *map(str, arguments)]


def _show(rows: Sequence[dict[str, Any]]) -> None:
    """The table, and its sentence."""
    table = Table(title="Test accuracy, BatchNorm re-estimated in every row")
    for name in ("what", "passes", "accuracy"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for row in rows:
        table.add_row(row["what"], f"{row['passes']:.1f}", f"{100 * row['accuracy']:.2f} %")
    Console().print(table)
    *_, ours, same, twice = rows
    print(
        f"After {ours['passes']:.1f} passes both stages reach {100 * ours['accuracy']:.2f} %; plain training with a "
        f"schedule made for {same['passes']} passes reaches {100 * same['accuracy']:.2f} %, with one made for "
        f"{twice['passes']} {100 * twice['accuracy']:.2f} %."
    )


if __name__ == "__main__":
    run_program(demo)
