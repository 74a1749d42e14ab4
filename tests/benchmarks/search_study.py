"""Stage 2's settings beside the plain controls, over tasks and seeds; where the defaults come from.

    python -m tests.benchmarks.search_study --out study --seeds 1 2 3 4 5

Hours of CPU. What is in ``--out`` already is not run again. Ends with a table in Markdown (``search_study.md`` beside
this file is one), mean and standard deviation over the seeds.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dimred.data.digits import write_digits
from dimred.data.photos import write_photos
from dimred.files.metrics_file import read_metrics

CONFIGS = Path(__file__).parents[2] / "pipelines" / "configs"
TASKS: dict[str, Callable[[Path, int], Any]] = {
    "digits": lambda out, seed: write_digits(out, seed),
    "noisy": lambda out, seed: write_digits(out, seed, label_noise=0.4),
    "photos": lambda out, seed: write_photos(out, seed),
}
OPTIONS = {"digits": [], "noisy": [], "photos": ["model.n_classes=8"]}
DEFAULTS = "defaults (best start, bfgs, consecutive pairs, batch 256)"
SETTINGS: dict[str, list[str]] = {
    DEFAULTS: [],
    "start=mean": ["start=mean"],
    "start=last": ["start=last"],
    "curvature_pair=same_batch": ["curvature_pair=same_batch"],
    "damping, initial_scaling": ["damping=true", "initial_scaling=true"],
    "search_split=val, 10 epochs of batch 500": ["search_split=val", "data.batch_size=500", "epochs=10"],
}
COOLDOWNS = (2, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for task in arguments.tasks:
            folder = arguments.out / task / str(seed)
            options = [f"--set=seed={seed}", *(f"--set={option}" for option in OPTIONS[task])]
            _controls(task, seed, folder, options)
            _searches(folder, options)
    print(table(arguments.out, arguments.tasks, arguments.seeds))


def _controls(task: str, seed: int, folder: Path, options: list[str]) -> None:
    """Stage 1 to epoch 70; from there plain training to 90, and each cooldown."""
    if not (folder / "data").exists():
        folder.mkdir(parents=True, exist_ok=True)
        TASKS[task](folder / "data", seed)
    stage_1 = CONFIGS / "digits_stage_1.yaml"
    _run(folder / "s1", "stage_1", folder / "data", "--config", stage_1, "--set=evaluate_every=10", *options)
    go_on = ["--from", _weights(folder), "--set=snapshots.first_epoch=99", "--set=evaluate_every=2", *options]
    _run(folder / "plain", "stage_1", folder / "data", "--config", stage_1, "--set=epochs=90", *go_on)
    for epochs in COOLDOWNS:
        cooldown = [f"--set=epochs={70 + epochs}", "--set=schedule.cooldown.after_epoch=70"]
        cooldown.append(f"--set=schedule.cooldown.epochs={epochs}")
        _run(folder / f"cool{epochs}", "stage_1", folder / "data", "--config", stage_1, *go_on, *cooldown)


def _searches(folder: Path, options: list[str]) -> None:
    """The average, and stage 2 with each setting."""
    stage_2, snapshots = CONFIGS / "digits_stage_2.yaml", folder / "s1" / "checkpoint_stage_1" / "checkpoint_pca"
    if not (folder / "average.json").exists():
        averaged = folder / "average.ckpt"
        averaged.unlink(missing_ok=True)
        _dimred("average", snapshots, _weights(folder), averaged)
        found = _dimred("eval", folder / "data", averaged, "--config", stage_2, "--json", *options)
        (folder / "average.json").write_text(found)
    for name, setting in SETTINGS.items():
        chosen = [f"--set={option}" for option in setting]
        out = folder / name.replace(" ", "_")
        _run(out, "stage_2", folder / "data", _weights(folder), "--config", stage_2, *options, *chosen)


def _weights(folder: Path) -> Path:
    return next((folder / "s1" / "checkpoint_stage_1").glob("*-70_*.ckpt"))


def _run(out: Path, program: str, *arguments: Any) -> None:
    if not (out / "done").exists():
        shutil.rmtree(out, ignore_errors=True)  # of a run that was cut off
        _program(program, *arguments, "--out", out)
        (out / "done").touch()


def _program(program: str, *arguments: Any) -> None:
    subprocess.run([sys.executable, "-m", f"dimred.pipelines.{program}", *map(str, arguments)], check=True)


def _dimred(*arguments: Any) -> str:
    command = [str(Path(sys.executable).with_name("dimred")), *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def table(out: Path, tasks: list[str], seeds: list[int]) -> str:
    """One row a control or setting, one column a task: test accuracy in percent, mean and standard deviation."""
    rows = {
        name: [_cell([read(out / task / str(seed)) for seed in seeds]) for task in tasks] for name, read in _readers()
    }
    lines = ["| | epochs of passes | " + " | ".join(tasks) + " |", "|---|---|" + "---|" * len(tasks)]
    for name, cells in rows.items():
        lines.append(f"| {name} | {_passes(out, name, tasks, seeds)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _readers() -> list[tuple[str, Callable[[Path], float]]]:
    def plain(epoch: int) -> Callable[[Path], float]:
        def read(folder: Path) -> float:
            records = read_metrics(folder / "s1" / "metrics.jsonl") + read_metrics(folder / "plain" / "metrics.jsonl")
            return float(next(record["accuracy"] for record in records if record["epoch"] == epoch))

        return read

    def cooldown(epochs: int) -> Callable[[Path], float]:
        return lambda folder: float(read_metrics(folder / f"cool{epochs}" / "metrics.jsonl")[-1]["accuracy"])

    def average(folder: Path) -> float:
        return float(json.loads((folder / "average.json").read_text())["accuracy_reestimated"])

    def searched(name: str) -> Callable[[Path], float]:
        return lambda folder: float(_result(folder, name)["accuracy_reestimated"])

    readers: list[tuple[str, Callable[[Path], float]]] = [
        (f"plain, epoch {epoch}", plain(epoch)) for epoch in (70, 72, 80, 90)
    ]
    readers += [(f"cooldown of {epochs} epochs from 70", cooldown(epochs)) for epochs in COOLDOWNS]
    readers += [("average of the 40 snapshots", average)]
    readers += [(f"stage 2: {name}", searched(name)) for name in SETTINGS]
    return [*readers, ("defaults, keep_best=false", lambda folder: _result(folder, DEFAULTS)["accuracy_by_epoch"]["2"])]


def _result(folder: Path, name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / name.replace(" ", "_") / "result.json").read_text())
    return result


def _cell(accuracies: list[float]) -> str:
    return f"{100 * np.mean(accuracies):.2f} ± {100 * np.std(accuracies, ddof=1):.2f}"


def _passes(out: Path, name: str, tasks: list[str], seeds: list[int]) -> str:
    """What the row cost beyond epoch 70, in epochs of plain training: a gradient is three forward passes."""
    if name.startswith("plain"):
        return str(int(name.rsplit(" ", 1)[1]) - 70)
    if name.startswith("cooldown"):
        return name.split()[2]
    if name.startswith("average"):
        return "0"
    setting = DEFAULTS if name.startswith("defaults") else name.removeprefix("stage 2: ")
    sizes = [int(option.split("=")[1]) for option in SETTINGS[setting] if option.startswith("data.batch_size")]
    costs = []
    for task in tasks:
        n_images = sum(1 for _ in (out / task / str(seeds[0]) / "data" / "train").glob("*/*.png"))
        for seed in seeds:
            result = _result(out / task / str(seed), setting)
            costs.append((sizes or [256])[0] * (3 * result["gradients"] + result["trials"]) / (3 * n_images))
    return f"{np.mean(costs):.1f}"


if __name__ == "__main__":
    main()
