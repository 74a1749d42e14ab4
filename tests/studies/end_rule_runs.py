"""Run what the study of the end of training needs, and store the outputs of every candidate.

    python -m tests.studies.end_rule_runs OUT --tasks photos noisy --seeds 1 --at 22 36
    python -m tests.studies.end_rule --keep OUT/store

For each task and seed one stage 1 at the constant rate of the recipe runs to the last epoch that is needed. B and C
begin at the epochs ``--at``: a fifth of all epochs brings the whole of the rate to 0, linear or by 1 - sqrt. A, today's
stage 2, begins later and ends after as many epochs: a tenth of them, from half of the rate. Each end and each average
that the rule measures is measured on ``val`` and ``test``, with BatchNorm re-estimated, and
``OUT/store/TASK_SEED_AT_RULE.npz`` has the outputs. What is in OUT is not run again, and a stage 1 that is too short
goes on. Tasks and their files are those of ``choice_runs.py``.
"""

import argparse
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mindspore import Tensor

from dimred.averaging.windows import Window, measure_windows
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig, complete, load_config
from dimred.curves import CurveName
from dimred.data.batches import STAGE_2_EPOCHS_FROM, read_batches
from dimred.distributed.ranks import ALONE
from dimred.evaluation.averages import SnapshotAverages
from dimred.io.run_names import SNAPSHOTS, STAGE_1_CHECKPOINTS, full_checkpoints
from dimred.runs.device import set_precision, set_up
from dimred.runs.steps import build_optimizer, join_step
from dimred.runs.task import build_task
from dimred.stages.parent import StageOneRun
from dimred.train_step.optimizers import is_rate, state_parameters
from dimred.train_step.schedule import with_cooldown
from dimred.vectors.parameters import from_arrays
from tests.benchmarks.choice_runs import EVERYTHING, TASKS, write_data
from tests.benchmarks.choice_store import SPLITS, Measuring
from tests.benchmarks.stored_choices import trained

Measure = Callable[[str, np.ndarray], float]  # a name and weights (M,) -> the mean trained loss on ``val``

LENGTHS = (3, 5, 8, 13, 21, 34, 55)  # snapshots in an average that ends at the newest one; then all of them
CURVES: dict[str, CurveName] = {"B": "linear", "C": "1-sqrt"}
KEPT = 60  # snapshots that a run of the recipe has at its end
CHECKED = 25  # an epoch from which the study of choices has the last weights


TODAY = {22: 25, 36: 40, 69: 78}  # epochs of stage 1 of B and C -> those of A, which trains for as many in all


class Cooldowns:
    """Cooldowns of one stage 1 in one process, with one compiled step: each begins from a full checkpoint.

    They are those of ``dimred.pipelines.stage_2`` to the bit, without what that measures and saves on the way.
    """

    def __init__(self, data: Path, weights: Path, config: Path, options: list[str], longest: int) -> None:
        difference = load_config(StageTwoConfig, config, options)
        parent = StageOneRun.open(weights).share()
        set_up(parent.known_config().seed)
        set_precision(settings := parent.whole_config(difference))
        self._task = build_task(settings, data)
        self._seed, self._rate, per_epoch = settings.seed, parent.last_rate(), self._task.steps_per_epoch
        self._optimizer = build_optimizer(
            parent.known_config().optimizer, self._task.network, [0.0] * (longest * per_epoch)
        )
        self._step = join_step(settings, self._task.network, self._optimizer, ALONE)
        self._layout = self._task.evaluator.layout

    def run(self, weights: Path, factor: float, curve: CurveName, epochs: int) -> list[np.ndarray]:
        """Bring ``factor`` times the rate to 0 from these weights, and return the weights (M,) after each epoch."""
        arrays, network, per_epoch = read_checkpoint(weights), self._task.network, self._task.steps_per_epoch
        from_arrays([*network.get_parameters(), *state_parameters(self._optimizer)], arrays, str(weights))
        done = int(arrays["global_step"].item())
        rates = with_cooldown(np.full(done + 1, factor * self._rate), done, epochs * per_epoch, curve)
        for parameter in self._optimizer.get_parameters():
            if is_rate(parameter):
                parameter.set_data(Tensor(np.pad(rates, (0, parameter.size - len(rates)))))
        points = []
        for epoch in range(1, epochs + 1):
            order = STAGE_2_EPOCHS_FROM + epoch
            for batch in read_batches(
                lambda order=order: self._task.training_batches.training_epoch(self._seed, order)
            ):
                self._step(*batch)
            named = {parameter.name: parameter.asnumpy() for parameter in network.get_parameters()}
            points.append(self._layout.flatten({name: named[name] for name in self._layout.names}).copy())
        return points


class Measured:
    """The outputs of the candidates that were measured."""

    def __init__(self, network: Measuring) -> None:
        self._network = network
        self._labels = {split: network.labels(split) for split in SPLITS[1:]}
        self._names: list[str] = []
        self._logits: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS[1:]}

    def add(self, name: str, weights: np.ndarray) -> float:
        """Measure weights (M,), and return their mean trained loss on ``val``."""
        self._network.put(weights)
        self._names.append(name)
        for split, found in self._logits.items():
            found.append(self._network.outputs(split)[1])
        return float(trained(self._logits["val"][-1][None].astype(np.float64), self._labels["val"]).mean())

    def write(self, out: Path) -> None:
        """Write ``names``, ``n_images``, and of each split labels and float16 logits (candidates, n, classes)."""
        arrays = {f"{split}_logits": np.stack(found) for split, found in self._logits.items()}
        arrays |= {f"{split}_labels": labels for split, labels in self._labels.items()}
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_suffix(".part")
        with part.open("wb") as file:
            np.savez_compressed(file, names=np.array(self._names), n_images=self._network.n_images, **arrays)
        part.rename(out)


class Runs:
    """The runs of one task and seed in OUT."""

    def __init__(self, out: Path, name: str, seed: int) -> None:
        self._task, self._out, self._name, self._seed = TASKS[name], out, f"{name}_{seed}", seed
        self._data = write_data(out, name, seed)
        self._run = out / self._name
        self._cooldowns: Cooldowns | None = None
        self._measuring: Measuring | None = None

    def store(self, epochs: list[int], rules: list[str]) -> None:
        """Train, and write the file of each rule and epoch that is missing."""
        files = {(rule, at): self._out / "store" / f"{self._name}_{at}_{rule}.npz" for at in epochs for rule in rules}
        missing = [place for place, file in files.items() if not file.exists()]
        if not missing:
            return
        starts = {(rule, at): TODAY[at] if rule == "A" else at for rule, at in missing}
        self._train(max(starts.values()))
        for (rule, at), start in starts.items():
            measured = Measured(self._network)
            if rule == "A":
                self._of_today(start, measured.add)
            else:
                self._of_rule(start, rule, measured.add)
            measured.write(files[rule, at])

    def _train(self, epochs: int) -> None:
        if full_checkpoints(self._run / STAGE_1_CHECKPOINTS).get(epochs):
            return
        own = [f"seed={self._seed}", f"epochs={epochs}", f"schedule.peak={self._task.rate}"]
        command = ["dimred.pipelines.stage_1", self._data, "--config", self._config(1), "--out", self._run, "--resume"]
        options = [f"--set={option}" for option in (*self._task.options, *EVERYTHING, *own)]
        with (self._out / "runs.log").open("a") as log:
            subprocess.run([sys.executable, "-m", *map(str, command), *options], check=True, stdout=log, stderr=log)

    def _config(self, stage: int) -> Path:
        return Path(str(self._task.config).format(stage))

    def _weights(self, at: int) -> Path:
        return full_checkpoints(self._run / STAGE_1_CHECKPOINTS)[at]

    def _cool_down(self, at: int, factor: float, curve: CurveName, epochs: int) -> list[np.ndarray]:
        if self._cooldowns is None:
            options = [*self._task.options, f"seed={self._seed}"]
            longest = max(full_checkpoints(self._run / STAGE_1_CHECKPOINTS)) * 5 // 4 + 2
            self._cooldowns = Cooldowns(self._data, self._weights(at), self._config(2), options, longest)
        return self._cooldowns.run(self._weights(at), factor, curve, epochs)

    @property
    def _network(self) -> Measuring:
        if self._measuring is None:
            one = load_config(StageOneConfig, self._run / "config.yaml")
            two = complete(load_config(StageTwoConfig, self._config(2), list(self._task.options)), one)
            self._measuring = Measuring(one, two, self._data)
        return self._measuring

    def _vector(self, file: Path) -> np.ndarray:
        arrays, layout = read_checkpoint(file), self._network.evaluator.layout
        return layout.flatten({name: arrays[name] for name in layout.names})

    def _averages(self, at: int) -> SnapshotAverages:
        series = CheckpointSeries.open(self._run / STAGE_1_CHECKPOINTS / SNAPSHOTS).select(until_epoch=at)
        steps, paths = series.steps[-KEPT:], series.paths[-KEPT:]
        return SnapshotAverages(dict(zip(steps, paths, strict=True)), self._network.evaluator.layout)

    def _of_rule(self, at: int, rule: str, measure: Measure) -> None:
        """Measure the candidates of B or C, and beside those of C the last weights of epoch ``CHECKED``."""
        *_, end = self._cool_down(at, 1.0, CURVES[rule], math.ceil(at / 4))
        measure("end", end)
        if rule == "B":  # whose averages are those of C
            return
        averages = self._averages(at)
        n = len(averages.steps)
        for length in (one for one in LENGTHS if one <= n):
            measure(f"uniform {length}", averages.of(Window(n - length, n)))
        measure(f"all {n}", averages.of(Window(0, n)))
        if CHECKED in full_checkpoints(self._run / STAGE_1_CHECKPOINTS):
            measure(f"last of epoch {CHECKED}", self._vector(self._weights(CHECKED)))

    def _of_today(self, at: int, measure: Measure) -> None:
        """Measure what today's stage 2 measures; the newest snapshot has the last weights."""
        points = self._cool_down(at, 0.5, "linear", math.ceil(at / 9))
        measure("end", points[-1])
        measure("mean of the epochs", np.mean(points, axis=0, dtype=np.float64).astype(np.float32))
        averages = self._averages(at)
        steps = averages.steps
        measure_windows(len(steps), lambda window: measure(window.name(steps), averages.of(window)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--at", type=int, nargs="+", default=[22, 36, 69], help="epochs of stage 1")
    parser.add_argument("--rules", nargs="+", choices=["A", *CURVES], default=["C", "A", "B"])
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for name in arguments.tasks:
            Runs(arguments.out.resolve(), name, seed).store(arguments.at, list(arguments.rules))


if __name__ == "__main__":
    main()
