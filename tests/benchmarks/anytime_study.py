"""One run at a constant rate, ended by stage 2 at two budgets, beside what it has to beat; over tasks and seeds.

    python -m tests.benchmarks.anytime_study --out study --seeds 1 2 3 4 5

Hours of CPU; it may be called for one task each, at the same time. What is in ``--out`` already is not run again. After
a stage 1 comes ``dimred compare``: ``val`` chooses, ``test`` reports, BatchNorm is re-estimated in every row. Ends with
tables in Markdown (``anytime_study.md`` beside this file is one). The task ``fashion`` needs the files of
``fashion_mnist.py``. Images are scored by accuracy in percent; the source code (``source_code.py``) by its loss per
byte.
"""

import argparse
import math
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dimred.comparison.summary import TITLES, collect
from dimred.config import StageOneConfig, config_text, load_config
from dimred.data.image_tree import write_digits
from dimred.io.metrics_file import ACCURACY
from dimred.io.run_names import STAGE_1_CHECKPOINTS, full_checkpoints
from tests.benchmarks.fashion_mnist import write_fashion_mnist
from tests.benchmarks.photos import write_photos

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "pipelines" / "configs"
METHODS = ("last", "average", "stage_2", "plain_for_total", "schedule_free")
TASKS: dict[str, Callable[[Path, int], Any]] = {
    "digits": lambda out, seed: write_digits(out, seed),
    "noisy": lambda out, seed: write_digits(out, seed, label_noise=0.4),
    "photos": write_photos,
    "fashion": write_fashion_mnist,
}
OPTIONS = {"photos": ["model.n_classes=8"], "fashion": ["data.image_size=28"]}
LIBRARY = Path(sysconfig.get_path("stdlib"))
DATA: dict[str, Callable[[Path, int], Any]] = TASKS | {"source_code": lambda out, seed: out.symlink_to(LIBRARY)}
RECIPES = dict.fromkeys(TASKS, (CONFIGS / "digits_anytime_1.yaml", CONFIGS / "digits_anytime_2.yaml"))
RECIPES["source_code"] = (HERE / "source_code_1.yaml", HERE / "source_code_2.yaml")
OURS, AGAINST = "stage_2", ("plain_for_total", "schedule_free", "average")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--tasks", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--at", type=int, nargs="+", default=[40, 80], help="epochs at which stage 1 ends")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="rows, of these")
    parser.add_argument("--set", action="append", default=[], help="for stage 1, such as schedule.peak=0.1")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for task in arguments.tasks:
            compare(arguments.out.resolve() / task, task, seed, arguments.at, arguments.methods, arguments.set)
    found = {task: collect(arguments.out / task / "comparison")["runs"] for task in arguments.tasks}
    shown = [method for method in METHODS if method in arguments.methods]
    print(table(found, arguments.at, shown), paired(found, arguments.at, shown), sep="\n\n")


def compare(folder: Path, task: str, seed: int, at: list[int], methods: list[str], changes: list[str]) -> None:
    """The methods from one stage 1, with some of its options changed."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / f"data_{seed}").exists():
        DATA[task](folder / f"data_{seed}", seed)
    (one, two), options = RECIPES[task], OPTIONS.get(task, [])
    config = folder / "stage_1.yaml"
    # What is measured on the way is not used here; the snapshots up to the first epoch must still be there at the last.
    # A later call with a larger budget goes on with the same run, so that these may not depend on the budget.
    kept = [
        "evaluate_every=40",
        "snapshots.keep=80",
        f"checkpoints.every_epochs={math.gcd(*at)}",
        "checkpoints.keep=99",
    ]
    config.write_text(config_text(load_config(StageOneConfig, one, [*options, *kept, *changes])))
    run, data = folder / f"stage_1_{seed}", folder / f"data_{seed}"
    train = [
        sys.executable, "-m", "dimred.pipelines.stage_1", data, "--config", config, "--out", run, "--resume",
        f"--set=seed={seed}", f"--set=epochs={max(at)}", "--set=stop=null", "--allow-change=checkpoints.every_epochs",
    ]  # fmt: skip
    if max(full_checkpoints(run / STAGE_1_CHECKPOINTS), default=0) < max(at):
        subprocess.run(list(map(str, train)), check=True)
    command = [
        Path(sys.executable).with_name("dimred"), "compare", data, run, "--config", two,
        "--methods", ",".join(methods), "--at", ",".join(map(str, at)), "--out", folder / "comparison",
        *(f"--set={option}" for option in options),
    ]  # fmt: skip
    subprocess.run(list(map(str, command)), check=True)


def table(found: dict[str, list[dict[str, Any]]], at: list[int], methods: list[str]) -> str:
    """Test scores, mean and standard deviation over the seeds; the passes are the mean over all runs."""
    lines = ["| stage 1 ends | | passes | " + " | ".join(found) + " |", "|---|---|---|" + "---|" * len(found)]
    for epoch in at:
        for method in methods:
            scores = [scores_of(runs, method, epoch) for runs in found.values()]
            passes = [run["passes"] for runs in found.values() for run in _of(runs, method, epoch)]
            digits = [3 if is_loss(runs) else 2 for runs in found.values()]
            cells = [
                f"{mean(list(each.values())):.{n}f} ± {deviation(list(each.values())):.{n}f}"
                for each, n in zip(scores, digits, strict=True)
            ]
            title = TITLES[method].strip("*")
            lines.append(f"| {epoch} | {title} | {mean(passes):.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def paired(found: dict[str, list[dict[str, Any]]], at: list[int], methods: list[str]) -> str:
    """What stage 2 is ahead by, seed by seed: mean and standard error, in points or in percent of the loss."""
    lines = ["| stage 1 ends | ahead of | " + " | ".join(found) + " | all |", "|---|---|" + "---|" * (len(found) + 1)]
    for epoch in at:
        for method in [method for method in AGAINST if method in methods]:
            gains = []
            for runs in found.values():
                ours, theirs = scores_of(runs, OURS, epoch), scores_of(runs, method, epoch)
                seeds, lower = sorted(ours.keys() & theirs.keys()), is_loss(runs)
                gains.append(
                    [100 * (1 - ours[seed] / theirs[seed]) if lower else ours[seed] - theirs[seed] for seed in seeds]
                )
            cells = [f"{mean(each):+.2f} ± {deviation(each) / max(1, len(each)) ** 0.5:.2f}" for each in gains]
            overall = mean([mean(each) for each in gains])
            lines.append(f"| {epoch} | {TITLES[method]} | " + " | ".join(cells) + f" | {overall:+.2f} |")
    return "\n".join(lines)


def scores_of(runs: list[dict[str, Any]], method: str, at: int) -> dict[int, float]:
    """Seed -> accuracy on ``test`` in percent, or the loss there; BatchNorm re-estimated."""
    unit = 1 if is_loss(runs) else 100
    return {run["seed"]: unit * run["test_reestimated"] for run in _of(runs, method, at)}


def is_loss(runs: list[dict[str, Any]]) -> bool:
    """Whether the lower score is better."""
    return runs[0]["metric"] != ACCURACY


def _of(runs: list[dict[str, Any]], method: str, at: int) -> list[dict[str, Any]]:
    return [run for run in runs if run["method"] == method and run["at"] == at]


def mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def deviation(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


if __name__ == "__main__":
    main()
