"""One run at a constant rate, ended by stage 2 at two budgets, beside what it has to beat; over tasks and seeds.

    python -m tests.benchmarks.anytime_study --out study --seeds 1 2 3 4 5

Hours of CPU; it may be called for one task each, at the same time. What is in ``--out`` already is not run again. All
that runs is ``dimred compare``, so its rules hold: ``val`` chooses, ``test`` reports, BatchNorm is re-estimated in
every row. Ends with tables in Markdown (``anytime_study.md`` beside this file is one).
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dimred.config import StageOneConfig, config_text, load_config
from dimred.report.comparison import TITLES, collect
from tests.benchmarks.search_study import CONFIGS, OPTIONS, TASKS

METHODS = (
    "last", "swa", "best_window", "continued", "continued_random", "continued_alone", "cooldown", "plain_for_total"
)  # fmt: skip
AGAINST = ("plain_for_total", "best_window", "cooldown", "continued_alone", "continued_random")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--at", type=int, nargs="+", default=[40, 80], help="epochs at which stage 1 ends")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for task in arguments.tasks:
            compare(arguments.out.resolve() / task, task, seed, arguments.at)
    found = {task: collect(arguments.out / task / "comparison")["runs"] for task in arguments.tasks}
    print(table(found, arguments.at), paired(found, arguments.at), sep="\n\n")


def compare(folder: Path, task: str, seed: int, at: list[int]) -> None:
    """All methods from one stage 1."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / f"data_{seed}").exists():
        TASKS[task](folder / f"data_{seed}", seed)
    config = folder / "stage_1.yaml"
    # What is measured on the way is not used here; the snapshots up to the first epoch must still be there at the last.
    changes = [*OPTIONS[task], f"evaluate_every={at[-1]}", f"snapshots.keep={at[-1]}"]
    config.write_text(config_text(load_config(StageOneConfig, CONFIGS / "digits_anytime_1.yaml", changes)))
    options = [f"--set={option}" for option in OPTIONS[task]]
    command = [
        Path(sys.executable).with_name("dimred"), "compare", folder / "data_{seed}", "--seeds", seed,
        "--stage-1-config", config, "--config", CONFIGS / "digits_anytime_2.yaml", "--methods", ",".join(METHODS),
        "--at", ",".join(map(str, at)), "--out", folder / "comparison", *options,
    ]  # fmt: skip
    subprocess.run(list(map(str, command)), check=True)


def table(found: dict[str, list[dict[str, Any]]], at: list[int]) -> str:
    """Test accuracy in percent, mean and standard deviation over the seeds; the passes are the mean over all runs."""
    lines = ["| stage 1 ends | | passes | " + " | ".join(found) + " |", "|---|---|---|" + "---|" * len(found)]
    for epoch in at:
        for method in METHODS:
            scores = [scores_of(runs, method, epoch) for runs in found.values()]
            passes = [run["passes"] for runs in found.values() for run in _of(runs, method, epoch)]
            cells = [f"{mean(list(each.values())):.2f} ± {deviation(list(each.values())):.2f}" for each in scores]
            title = TITLES[method].strip("*")
            lines.append(f"| {epoch} | {title} | {mean(passes):.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def paired(found: dict[str, list[dict[str, Any]]], at: list[int]) -> str:
    """What stage 2 is ahead by, seed by seed: mean and standard error, in points."""
    lines = ["| stage 1 ends | ahead of | " + " | ".join(found) + " | all |", "|---|---|" + "---|" * (len(found) + 1)]
    for epoch in at:
        for method in AGAINST:
            gains = []
            for runs in found.values():
                ours, theirs = scores_of(runs, "continued", epoch), scores_of(runs, method, epoch)
                gains.append([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])
            cells = [f"{mean(each):+.2f} ± {deviation(each) / max(1, len(each)) ** 0.5:.2f}" for each in gains]
            overall = mean([mean(each) for each in gains])
            lines.append(f"| {epoch} | {TITLES[method]} | " + " | ".join(cells) + f" | {overall:+.2f} |")
    return "\n".join(lines)


def scores_of(runs: list[dict[str, Any]], method: str, at: int) -> dict[int, float]:
    """Seed -> test accuracy in percent, BatchNorm re-estimated."""
    return {run["seed"]: 100 * run["test_reestimated"] for run in _of(runs, method, at)}


def _of(runs: list[dict[str, Any]], method: str, at: int) -> list[dict[str, Any]]:
    return [run for run in runs if run["method"] == method and run["at"] == at]


def mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def deviation(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


if __name__ == "__main__":
    main()
