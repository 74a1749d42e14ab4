"""``dimred merge`` on stage 1's snapshots, with accuracy on few images as the metric, beside what it has to beat.

    python -m tests.benchmarks.merge_study --out study --seeds 1 2 3 4 5

Hours of CPU. What is in ``--out`` already is not run again. Ends with a table in Markdown: test accuracy in percent,
mean and standard deviation over the seeds. Of each method ``select`` chooses; ``test`` is only reported.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import dimred
from dimred.evaluate.averages import combine_snapshots
from dimred.merging.metric_process import ProcessMetric
from dimred.merging.trials import PLAIN, Trial, read_trials
from dimred.weights.checkpoint_io import write_checkpoint
from tests.benchmarks.search_study import CONFIGS, OPTIONS, TASKS

METRIC = f"{Path(__file__).with_name('merge_study_metric.py')}:score"
ROWS = ("last snapshot", "best window or profile", "greedy soup", "search", "random directions", "kept")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--images", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--set", action="append", default=[], help="for stage 1, such as epochs=3 for a first try")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for task in arguments.tasks:
            folder = (arguments.out / task / str(seed)).resolve()
            train(task, seed, folder, arguments.set)
            for count in arguments.images:
                if not (folder / f"{count}.json").exists():
                    found = study(folder, count, seed, arguments.budget)
                    (folder / f"{count}.json").write_text(json.dumps(found))
    print(table(arguments.out, arguments.tasks, arguments.seeds, arguments.images))


def train(task: str, seed: int, folder: Path, changes: list[str]) -> None:
    """The data and stage 1."""
    if not (folder / "data").exists():
        folder.mkdir(parents=True, exist_ok=True)
        TASKS[task](folder / "data", seed)
    if not (folder / "done").exists():
        options = [f"--set={option}" for option in (f"seed={seed}", *OPTIONS[task], *changes)]
        command = [sys.executable, "-m", "dimred.pipelines.stage_1", folder / "data", "--config"]
        command += [CONFIGS / "digits_stage_1.yaml", "--out", folder / "s1", "--resume", *options]
        subprocess.run(list(map(str, command)), check=True)
        (folder / "done").touch()


def study(folder: Path, count: int, seed: int, budget: int) -> dict[str, float]:
    """Test accuracy of each method's choice, ``count`` images for the search and as many to select on."""
    os.environ |= {"STUDY_DATA": str(folder / "data"), "STUDY_RUN": str(folder / "s1"), "STUDY_IMAGES": str(count)}
    snapshots = folder / "s1" / "checkpoint_stage_1" / "checkpoint_pca"
    series = dimred.CheckpointSeries.open(snapshots)
    assert series.layout is not None
    record, trials = merge(snapshots, folder / f"merged-{count}.ckpt", seed, budget)
    best = {
        kind: choice(trials, kinds) for kind, kinds in (("plain", PLAIN), ("soup", ("soup",)), ("search", ("search",)))
    }
    start = best["plain"].candidate.coefficients
    write_random_directions(folder / f"random-{count}", series, start, seed)
    _, randomly = merge(folder / f"random-{count}", folder / f"random-{count}.ckpt", seed, budget)
    newest = tuple(np.eye(len(series))[-1].tolist())
    judge = ProcessMetric("--metric", METRIC, 3600, folder / "metric.log")

    def tested(files: dimred.CheckpointSeries, coefficients: tuple[float, ...]) -> float:
        candidate = folder / "candidate.ckpt"
        vector = combine_snapshots(files, series.layout, coefficients)
        write_checkpoint(candidate, series.layout.unflatten(vector))
        return judge.score(candidate, "test").value

    found = {
        "last snapshot": tested(series, newest),
        "best window or profile": tested(series, start),
        "greedy soup": tested(series, best["soup"].candidate.coefficients),
        "search": tested(series, best["search"].candidate.coefficients),
        "random directions": tested(
            dimred.CheckpointSeries.open(folder / f"random-{count}"),
            choice(randomly, ("search",)).candidate.coefficients,
        ),
        "kept": tested(series, tuple(record["kept"]["coefficients"])),
    }
    judge.close()
    return found


def merge(run: Path, out: Path, seed: int, budget: int) -> tuple[dict[str, Any], list[Trial]]:
    """One search; its record and its trials."""
    record = Path(f"{out}.json")
    if not record.exists():
        dimred.merge(run, out, metric=METRIC, maximize=True, budget=budget, seed=seed)
    return json.loads(record.read_text()), read_trials(Path(f"{out}.merge") / "trials.jsonl")[1]


def choice(trials: list[Trial], kinds: tuple[str, ...]) -> Trial:
    """The best of these kinds on ``select``, of equal ones the first."""
    judged = [one for one in trials if one.split == "select" and one.candidate.kind in kinds and one.score]
    return max(judged, key=lambda one: one.score.value if one.score else 0.0)


def write_random_directions(folder: Path, series: dimred.CheckpointSeries, start: tuple[float, ...], seed: int) -> None:
    """As many checkpoints around one network as the series has, spread as its snapshots are, in random directions."""
    layout, n = series.layout, len(series)
    assert layout is not None
    rows = np.array([combine_snapshots(series, layout, tuple(row)) for row in np.eye(n)], np.float64)
    scores, spread, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    directions, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((layout.size, n)))
    moved = combine_snapshots(series, layout, start) + (scores * spread) @ directions.T
    made = dimred.CheckpointSeries(folder, keep=None)
    for step, row in enumerate(moved[len(made) :], start=len(made) + 1):
        made.append(layout.unflatten(row.astype(np.float32)), step=step, epoch=step)


def table(out: Path, tasks: list[str], seeds: list[int], images: list[int]) -> str:
    """One row a method, one column a task and number of images."""
    columns = [(task, count) for task in tasks for count in images]
    lines = [
        "| | " + " | ".join(f"{task}, {count}" for task, count in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for row in ROWS:
        cells = []
        for task, count in columns:
            found = [json.loads((out / task / str(seed) / f"{count}.json").read_text())[row] for seed in seeds]
            spread = f" ± {100 * np.std(found, ddof=1):.1f}" if len(found) > 1 else ""
            cells.append(f"{100 * np.mean(found):.1f}{spread}")
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
