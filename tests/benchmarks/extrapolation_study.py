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

BEST = "best window or profile"
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
        print(table([out / f"{task}_{seed}.npz" for seed in arguments.seeds]), flush=True)


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
    found: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def add(name: str, coefficients: np.ndarray, weights: np.ndarray) -> float:
        on.put(weights)
        val, test = on.loss_and_metric("val"), on.loss_and_metric("test")
        found[name] = (coefficients, val.losses, test.losses)
        print(task, seed, name, float(val.losses.mean()), float(test.losses.mean()), test.metric, flush=True)
        return float(val.losses.mean())

    def add_window(window: Window) -> float:
        coefficients = window.coefficients(steps)
        return add(window.name(steps), coefficients / coefficients.sum(), averages.of(window))

    windows = [one for one in uniform_windows(n) if one.end == n or one.end - one.first >= 5]
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
        **dict(zip(("coefficients", "val", "test"), map(np.array, columns), strict=True)),
    )  # fmt: skip


def table(paths: list[Path]) -> str:
    """Make a table: the test loss of each kind's best on ``val``, and of what the rule of choice finds."""
    rows: dict[str, list[float]] = {}
    for path in paths:
        with np.load(path) as file:
            store = dict(file)
        names, val, test = list(map(str, store["names"])), store["val"].mean(axis=1), store["test"].mean(axis=1)
        sizes = [effective_size(coefficients) for coefficients in store["coefficients"]]
        candidates = [Candidate(str(k), sizes[k], store["val"][k]) for k in range(len(names))]
        extrapolated = [name.startswith("extrapolated") for name in names]
        kinds = {
            "last snapshot": [name.startswith("the snapshot") for name in names],
            "best uniform window": [name.startswith(("uniform", "the snapshot")) for name in names],
            BEST: [not each for each in extrapolated],
            "best window, extrapolated": [name.startswith(f"extrapolated {store['best']} ") for name in names],
            "any window, extrapolated": extrapolated,
        }
        for kind, belongs in kinds.items():
            found = min(np.flatnonzero(belongs), key=lambda k: val[k])
            rows.setdefault(kind, []).append(float(test[found]))
        for kind, belongs in (("the rule without", kinds[BEST]), ("the rule with all", [True] * len(names))):
            found = int(choose([candidates[k] for k in np.flatnonzero(belongs)]).name)
            rows.setdefault(kind, []).append(float(test[found]))
    lines = [f"| {paths[0].stem} and on | test loss | ahead of the {BEST} by |", "|---|---|---|"]
    for kind, losses in rows.items():
        ahead = [other - loss for loss, other in zip(losses, rows[BEST], strict=True)]
        gain = f"{mean(ahead):+.4f} ± {deviation(ahead) / len(ahead) ** 0.5:.4f}"
        lines.append(f"| {kind} | {mean(losses):.4f} ± {deviation(losses):.4f} | {gain} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
