"""``dimred merge`` on stage 1's snapshots, with a metric of few samples, beside what it has to beat.

    python -m tests.benchmarks.merge_study --out study --seeds 1 2 3 4 5

The metric is accuracy on few images; on the source code (``source_code.py``) the share of generated lines that
``ast.parse`` accepts. Hours of CPU. What is in ``--out`` already is not run again. Ends with tables in Markdown, in
percent of ``test``: mean and standard deviation over the seeds, and what each method is ahead of the best window or
profile by, seed by seed, with its standard error. Of each method ``select`` chooses; ``test`` is only reported.
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
from tests.benchmarks.anytime_study import DATA, deviation, mean
from tests.benchmarks.search_study import CONFIGS, OPTIONS, TASKS

HERE = Path(__file__).parent
RECIPES = dict.fromkeys(TASKS, CONFIGS / "digits_stage_1.yaml") | {"source_code": HERE / "source_code_1.yaml"}
METRICS = dict.fromkeys(TASKS, HERE / "merge_study_metric.py") | {"source_code": HERE / "merge_study_lines.py"}
BEST = "best window or profile"
ROWS = ("last snapshot", BEST, "greedy soup", "search", "random directions", "kept")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--tasks", nargs="+", choices=list(DATA), default=list(DATA))
    parser.add_argument("--samples", type=int, nargs="+", default=[50, 200], help="images, or lines, to search on")
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--set", action="append", default=[], help="for stage 1, such as epochs=3 for a first try")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for task in arguments.tasks:
            folder = (arguments.out / task / str(seed)).resolve()
            train(task, seed, folder, arguments.set)
            for count in arguments.samples:
                if not (folder / f"{count}.json").exists():
                    found = study(folder, f"{METRICS[task]}:score", count, seed, arguments.budget)
                    (folder / f"{count}.json").write_text(json.dumps(found))
    print(tables(arguments.out, arguments.tasks, arguments.seeds, arguments.samples))


def train(task: str, seed: int, folder: Path, changes: list[str]) -> None:
    """The data and stage 1."""
    if not (folder / "data").exists():
        folder.mkdir(parents=True, exist_ok=True)
        DATA[task](folder / "data", seed)
    if not (folder / "done").exists():
        options = [f"--set={option}" for option in (f"seed={seed}", *OPTIONS.get(task, []), *changes)]
        command = [sys.executable, "-m", "dimred.pipelines.stage_1", folder / "data", "--config"]
        command += [RECIPES[task], "--out", folder / "s1", "--resume", *options]
        subprocess.run(list(map(str, command)), check=True)
        (folder / "done").touch()


def study(folder: Path, metric: str, count: int, seed: int, budget: int) -> dict[str, float]:
    """Test score of each method's choice, ``count`` samples for the search and as many to select on."""
    os.environ |= {"STUDY_DATA": str(folder / "data"), "STUDY_RUN": str(folder / "s1"), "STUDY_COUNT": str(count)}
    snapshots = folder / "s1" / "checkpoint_stage_1" / "checkpoint_pca"
    series = dimred.CheckpointSeries.open(snapshots)
    assert series.layout is not None
    record, trials = merge(snapshots, folder / f"merged-{count}.ckpt", metric, seed, budget)
    best = {
        kind: choice(trials, kinds) for kind, kinds in (("plain", PLAIN), ("soup", ("soup",)), ("search", ("search",)))
    }
    start = best["plain"].candidate.coefficients
    write_random_directions(folder / f"random-{count}", series, start, seed)
    _, randomly = merge(folder / f"random-{count}", folder / f"random-{count}.ckpt", metric, seed, budget)
    newest = tuple(np.eye(len(series))[-1].tolist())
    judge = ProcessMetric("--metric", metric, 3600, folder / "metric.log")

    def tested(files: dimred.CheckpointSeries, coefficients: tuple[float, ...]) -> float:
        candidate = folder / "candidate.ckpt"
        vector = combine_snapshots(files, series.layout, coefficients)
        write_checkpoint(candidate, series.layout.unflatten(vector))
        return judge.score(candidate, "test").value

    found = {
        "last snapshot": tested(series, newest),
        BEST: tested(series, start),
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


def merge(run: Path, out: Path, metric: str, seed: int, budget: int) -> tuple[dict[str, Any], list[Trial]]:
    """One search; its record and its trials."""
    record = Path(f"{out}.json")
    if not record.exists():
        dimred.merge(run, out, metric=metric, maximize=True, budget=budget, seed=seed)
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


def tables(out: Path, tasks: list[str], seeds: list[int], samples: list[int]) -> str:
    """Scores, and gains over the best window or profile: one row a method, one column a task and number of samples."""
    found = {
        f"{task}, {count}": [json.loads((out / task / str(seed) / f"{count}.json").read_text()) for seed in seeds]
        for task in tasks
        for count in samples
    }
    head = ["| | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    scores, gains = list(head), list(head)
    for row in ROWS:
        values = [[100 * each[row] for each in column] for column in found.values()]
        scores.append(f"| {row} | " + " | ".join(f"{mean(each):.1f} ± {deviation(each):.1f}" for each in values) + " |")
    for row in (row for row in ROWS if row != BEST):
        values = [[100 * (each[row] - each[BEST]) for each in column] for column in found.values()]
        errors = [deviation(each) / len(each) ** 0.5 for each in values]
        cells = [f"{mean(each):+.1f} ± {error:.1f}" for each, error in zip(values, errors, strict=True)]
        gains.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(scores) + "\n\n" + "\n".join(gains)


if __name__ == "__main__":
    main()
