"""Are windows that are extrapolated worth a place among the candidates of a choice? Extra-Merge, arXiv 2605.26484.

    python -m tests.benchmarks.extrapolation_study --out study --seeds 1 2 3 4 5

An extrapolated window is w + a (w - v): w the mean of the newest L snapshots, v that of the L before them, a 1/8, 1/4,
1/2. It needs no training. Each run is stage 1 at a constant rate, 16 epochs, two snapshots an epoch from the fifth on.
The losses of all candidates on each sample of ``val`` and ``test`` are stored in ``OUT/TASK_SEED.npz``; what is there
already is not run again. From the store comes what the rule of choice finds with the extrapolated windows and without.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np

from dimred.averaging.choice import Candidate, choose
from dimred.averaging.windows import Window, effective_size, profiles_around, uniform_windows
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.io.run_names import SNAPSHOTS, STAGE_1_CHECKPOINTS
from tests.benchmarks.anytime_study import DATA, OPTIONS, RECIPES, deviation, mean

SHARES = (0.125, 0.25, 0.5)
SET = ["epochs=16", "stop=null", "evaluate_every=40", "snapshots.per_epoch=2", "snapshots.first_epoch=5"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--tasks", nargs="+", choices=list(DATA), default=["source_code"])
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for task in arguments.tasks:
        for seed in arguments.seeds:
            if not (out / f"{task}_{seed}.npz").exists():
                measure(out, task, seed)
        print(table([out / f"{task}_{seed}.npz" for seed in arguments.seeds], task), flush=True)


def measure(out: Path, task: str, seed: int) -> None:
    """Train, and store the losses of all candidates: names (C,), coefficients (C, N), losses (C, n) by split."""
    from dimred.builders import build_network, build_scores, build_splits
    from dimred.evaluation.averages import SnapshotAverages
    from dimred.evaluation.evaluator import OnSplits
    from dimred.trainer.device import set_up

    data, run = out / f"{task}_{seed}_data", out / f"{task}_{seed}_run"
    if not data.exists():
        DATA[task](data, seed)
    options = [*OPTIONS.get(task, []), *SET, f"seed={seed}"]
    train = [sys.executable, "-m", "dimred.pipelines.stage_1", data, "--config", RECIPES[task][0], "--out", run]
    subprocess.run([*map(str, train), "--resume", *(f"--set={option}" for option in options)], check=True)

    settings = load_config(StageOneConfig, RECIPES[task][0], options)
    images = build_splits(settings, data, ["test", "train", "val"])
    set_up(settings.seed)
    on = OnSplits(
        build_network(settings),
        images,
        build_scores(settings),
        seed=seed,
        n_batches=StageTwoConfig().reestimate_batches,
    )
    averages = SnapshotAverages(CheckpointSeries.open(run / STAGE_1_CHECKPOINTS / SNAPSHOTS), on.layout)
    steps, n = averages.steps, len(averages.steps)
    found: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray, float]] = {}

    def add(name: str, coefficients: np.ndarray, weights: np.ndarray) -> float:
        on.put(weights)
        val, test = on.loss_and_metric("val"), on.loss_and_metric("test")
        found[name] = (coefficients, val.losses, test.losses, float(test.metric))
        print(task, seed, name, float(val.losses.mean()), float(test.losses.mean()), test.metric, flush=True)
        return float(val.losses.mean())

    def add_window(window: Window) -> float:
        coefficients = window.coefficients(steps)
        return add(window.name(steps), coefficients / coefficients.sum(), averages.of(window))

    windows = uniform_windows(n, shortest=1)
    best = windows[int(np.argmin([add_window(window) for window in windows]))]
    for window in profiles_around(best):
        add_window(window)
    for window in windows:
        length = window.end - window.first
        if window.end == n and 2 * length <= n:
            before = Window(window.first - length, window.first)
            new, old = averages.of(window), averages.of(before)
            for share in SHARES:
                coefficients = (1 + share) * window.coefficients(steps) - share * before.coefficients(steps)
                add(f"extrapolated {length} {share}", coefficients / length, new + np.float32(share) * (new - old))
    columns = zip(*found.values(), strict=True)
    np.savez(
        out / f"{task}_{seed}.npz", names=list(found), best=best.end - best.first,
        **dict(zip(("coefficients", "val", "test", "metric"), map(np.array, columns), strict=True)),
    )  # fmt: skip


def chosen(store: dict[str, np.ndarray], allowed: list[int]) -> int:
    """Return the number of the candidate that the rule chooses among those allowed, on ``val``."""
    candidates = [Candidate(str(k), effective_size(store["coefficients"][k]), store["val"][k]) for k in allowed]
    return int(choose(candidates).name)


def table(paths: list[Path], task: str) -> str:
    """Make a table: what is chosen on each seed without and with the extrapolated windows, and the gain."""
    lines = [f"| {task}, seed | without | with those around the best window | with all | best of all on test |"]
    lines.append("|---|---|---|---|---|")
    gains: list[list[float]] = [[], [], []]
    metric_gains: list[list[float]] = [[], [], []]
    for path in paths:
        with np.load(path) as file:
            store = dict(file)
        names, losses = list(map(str, store["names"])), store["test"].mean(axis=1)
        plain = [k for k, name in enumerate(names) if not name.startswith("extrapolated")]
        uniform = [k for k in plain if names[k].startswith(("uniform", "the snapshot"))]
        best = names[min(uniform, key=lambda k: store["val"][k].mean())]
        newest = str(store["best"])
        around = [k for k, name in enumerate(names) if name.startswith(f"extrapolated {newest} ")]
        everything = list(range(len(names)))
        picks = [chosen(store, plain), chosen(store, plain + around), chosen(store, everything), int(losses.argmin())]
        lines.append(
            f"| {path.stem.rpartition('_')[2]} (best window: {best}) | "
            + " | ".join(f"{losses[k]:.4f} {store['metric'][k]:.4f} ({names[k]})" for k in picks)
            + " |"
        )
        for number, pick in enumerate(picks[1:]):
            gains[number].append(float(losses[picks[0]] - losses[pick]))
            metric_gains[number].append(float(store["metric"][pick] - store["metric"][picks[0]]))
    for what, found in (("loss is lower by", gains), ("metric is higher by", metric_gains)):
        cells = [f"{mean(each):+.4f} ± {deviation(each) / len(each) ** 0.5:.4f}" for each in found]
        lines.append(f"| {what} | | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
