"""Run what the study of the end of training needs, and store the outputs of every candidate.

    python -m tests.studies.end_rule_runs OUT --tasks photos noisy --seeds 1 --at 22 36
    python -m tests.studies.end_rule --keep OUT/store

For each task and seed one stage 1 at the constant rate of the recipe runs to the last epoch of ``--at``. From each of
these epochs a cooldown takes a fifth of all epochs and brings the whole of the rate to 0, once by each curve of
``--curves``.
Then the ends of the cooldowns and the averages of stage 1's newest snapshots are measured on ``val`` and
``test``, with BatchNorm re-estimated. ``OUT/store/TASK_SEED_AT.npz`` has their outputs. What is in OUT is not run
again, nor is the end of a linear cooldown that the study of choices has, and a stage 1 that is too short goes on. Tasks
and their files are those of ``choice_runs.py``.
"""

import argparse
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dimred.averaging.windows import Window
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig, complete, load_config
from dimred.evaluation.averages import SnapshotAverages
from dimred.io.run_names import SNAPSHOTS, STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS, full_checkpoints
from dimred.runs.device import set_up
from tests.benchmarks.choice_runs import EVERYTHING, TASKS, write_data
from tests.benchmarks.choice_store import SPLITS, Measuring

LENGTHS = (3, 5, 8, 13, 21, 34, 55)  # snapshots in an average that ends at the newest one; then all of them
CURVES = ("linear", "1-sqrt")
CHOICES = Path(__file__).parents[1] / "benchmarks" / "choices"
CHECKED = 25  # an epoch from which the study of choices has the last weights


class Runs:
    """The runs of one task and seed in OUT."""

    def __init__(self, out: Path, name: str, seed: int) -> None:
        self._task, self._out, self._name, self._seed = TASKS[name], out, f"{name}_{seed}", seed
        self._data = write_data(out, name, seed)
        self._run = out / self._name

    def store(self, epochs: list[int], curves: list[str]) -> None:
        """Train, and write the file of each of these epochs that is missing."""
        files = {at: self._out / "store" / f"{self._name}_{at}.npz" for at in epochs}
        missing = {at: file for at, file in files.items() if not file.exists()}
        if not missing:
            return
        self._train(max(missing))
        ends = {at: {curve: self._cool_down(at, curve) for curve in self._new(at, curves)} for at in missing}
        measuring = self._measuring()
        for at, file in missing.items():
            self._measure(measuring, at, ends[at], file)

    def _new(self, at: int, curves: list[str]) -> list[str]:
        """Leave out the linear one if the study of choices has its end."""
        has_linear = (CHOICES / f"{self._name}_{at + math.ceil(at / 4)}_fifth.npz").exists()
        return [curve for curve in curves if not (has_linear and curve == "linear")]

    def _train(self, epochs: int) -> None:
        if full_checkpoints(self._run / STAGE_1_CHECKPOINTS).get(epochs):
            return
        own = [f"seed={self._seed}", f"epochs={epochs}", f"schedule.peak={self._task.rate}"]
        command = ["dimred.pipelines.stage_1", self._data, "--config", self._config(1), "--out", self._run, "--resume"]
        self._run_module(command, [*self._task.options, *EVERYTHING, *own])

    def _cool_down(self, at: int, curve: str) -> Path:
        """Run a cooldown from an epoch of stage 1, unless that is done, and return the file of its end."""
        out = self._out / f"{self._name}_{at}_{curve}"
        weights = full_checkpoints(self._run / STAGE_1_CHECKPOINTS)[at]
        command = ["dimred.pipelines.stage_2", self._data, weights, "--config", self._config(2), "--out", out]
        own = ["epochs=20%", "cooldown.factor=1.0", f"cooldown.schedule={curve}", f"seed={self._seed}"]
        # Nothing is chosen or looked for: all of that is done here, from the outputs.
        own += ["keep_best=false", f"start={weights}", "data.eval_split=val", "reestimate_batch_norm=false"]
        self._run_module([*command, "--resume"], [*self._task.options, *own])
        points = {
            int(p.stem.rpartition("-")[2].partition("_")[0]): p for p in (out / STAGE_2_CHECKPOINTS).glob("*-*_*.ckpt")
        }
        return points[max(points)]

    def _config(self, stage: int) -> str:
        return str(self._task.config).format(stage)

    def _run_module(self, module: list[Any], options: list[str]) -> None:
        command = [sys.executable, "-m", *map(str, module), *(f"--set={option}" for option in options)]
        with (self._out / "runs.log").open("a") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log)

    def _measuring(self) -> Measuring:
        one = load_config(StageOneConfig, self._run / "config.yaml")
        two = complete(load_config(StageTwoConfig, Path(self._config(2)), list(self._task.options)), one)
        set_up(one.seed)
        return Measuring(one, two, self._data)

    def _candidates(self, measuring: Measuring, at: int, ends: dict[str, Path]) -> Iterator[tuple[str, np.ndarray]]:
        """Yield a name and the weights of each candidate, and of the last weights of epoch ``CHECKED``."""
        layout = measuring.evaluator.layout

        def vector(file: Path) -> np.ndarray:
            arrays = read_checkpoint(file)
            return layout.flatten({name: arrays[name] for name in layout.names})

        for curve, file in ends.items():
            yield curve, vector(file)
        series = CheckpointSeries.open(self._run / STAGE_1_CHECKPOINTS / SNAPSHOTS).select(until_epoch=at)
        averages = SnapshotAverages(dict(zip(series.steps, series.paths, strict=True)), layout)
        n = len(series.steps)
        for length in (one for one in LENGTHS if one <= n):
            yield f"uniform {length}", averages.of(Window(n - length, n))
        yield f"all {n}", averages.of(Window(0, n))
        if checked := full_checkpoints(self._run / STAGE_1_CHECKPOINTS).get(CHECKED):
            yield f"last of epoch {CHECKED}", vector(checked)

    def _measure(self, measuring: Measuring, at: int, ends: dict[str, Path], out: Path) -> None:
        names, outputs = [], dict[str, list[np.ndarray]]()
        for name, weights in self._candidates(measuring, at, ends):
            measuring.put(weights)
            names.append(name)
            for split in SPLITS[1:]:
                kind, values = measuring.outputs(split)
                outputs.setdefault(f"{split}_{kind}", []).append(values)
        arrays = {name: np.stack(values) for name, values in outputs.items()}
        labels = {f"{split}_labels": measuring.labels(split) for split in SPLITS[1:]}
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_suffix(".part.npz")
        np.savez_compressed(part, names=np.array(names), n_images=measuring.n_images, **arrays, **labels)
        part.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--at", type=int, nargs="+", default=[22, 36, 69], help="epochs of stage 1")
    parser.add_argument("--curves", nargs="+", choices=CURVES, default=CURVES)
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for name in arguments.tasks:
            Runs(arguments.out.resolve(), name, seed).store(arguments.at, list(arguments.curves))


if __name__ == "__main__":
    main()
