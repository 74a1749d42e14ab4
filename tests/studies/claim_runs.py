"""Make the store of the published claim: 70 of 90 epochs, then two of the search, and what stands beside them.

    python -m tests.studies.claim_runs OUT --tasks digits noisy --seeds 1 2
    python -m tests.studies.claim_runs OUT --recipe constant --tasks digits --seeds 1
    python -m tests.studies.published_claim OUT/claims/published

For each task and seed one stage 1 runs, and from one of its epochs two epochs of the search as published, and a plain
cooldown of two epochs, from the whole of the rate there. All of them, the full checkpoints of stage 1, averages and
medians of its snapshots are measured with BatchNorm re-estimated. The recipe ``published`` is ``digits`` run to the
end of its schedule, with stage 2 from epoch 70; ``constant`` is ``digits_cooldown`` as in ``choice_runs``, with stage 2
from epoch 40; beside it, plain training with a schedule made for as many passes.

A file has ``names``, ``passes``, ``val_losses`` (means of the trained loss), and of ``test`` which samples were right,
as bits, or of a text the loss of each. ``as_trained`` is the test accuracy before BatchNorm is re-estimated, and
``moved`` how far the search moved inside and outside its subspace. What is in OUT already is not run again. A run of
digits takes four minutes of one core, of Fashion-MNIST 25, of the source code 20.
"""

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dimred.averaging.windows import Window
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.evaluation.averages import SnapshotAverages
from dimred.io.run_names import RESULT, SNAPSHOTS, STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS, full_checkpoints
from dimred.io.stage_two_result import FORWARD, StageTwoResult
from dimred.runs.device import set_up
from dimred.vectors.parameters import from_arrays
from tests.studies.choice_runs import EVERYTHING, TASKS, Task, run_module, write_data
from tests.studies.choice_store import KEPT, Measuring
from tests.studies.stored_choices import measure_windows

PUBLISHED = Path(__file__).parents[2] / "pipelines" / "configs" / "digits.yaml"
SEARCH = ("method=search", "epochs=2")
BFGS = "search={rule: bfgs, n_components: 32, rho: 0.55, gamma: 0.9, alpha: 0.001, sigma: 0.4, max_trials: 10}"


class Recipe(NamedTuple):
    """Where stage 1 ends, and what is kept of it."""

    at: int  # epoch from which stage 2 starts
    end: int  # epoch of the last full checkpoint
    is_constant: bool

    def stage_1(self, task: Task) -> tuple[Path, list[str]]:
        """Return the configuration of stage 1 and its options."""
        if self.is_constant:
            return task.config, [*EVERYTHING, f"schedule.peak={task.rate}"]
        kept = ["evaluate_every_epochs=200", "snapshots.keep=99", "snapshots.first_epoch=31"]
        if not task.has_own_recipe:
            return PUBLISHED, kept
        schedule = ["schedule.name=linear", f"schedule.total_epochs={self.end}", f"schedule.peak={task.rate}"]
        return task.config, [*kept, *schedule, "stop=null", "checkpoints.every_epochs=10", "checkpoints.keep=10"]


RECIPES = {"published": Recipe(70, 90, False), "constant": Recipe(40, 40, True)}
AS_MANY = 43  # passes that the search ends after, from epoch 40 on


class Row(NamedTuple):
    """What was measured of one network."""

    name: str
    passes: float
    val_loss: float
    of_test: np.ndarray  # right or not; of a text losses
    as_trained: float
    moved: tuple[float, float]


class Claim:
    """One task and seed."""

    def __init__(self, out: Path, recipe: str, name: str, seed: int) -> None:
        self._task, self._recipe, self._seed = TASKS[name], RECIPES[recipe], seed
        self._store = out / "claims" / recipe / f"{name}_{seed}.npz"
        self._run, self._data = out / f"{recipe}_{name}_{seed}", write_data(out, name, seed)

    def make(self) -> None:
        if self._store.exists():
            return
        task, recipe, at = self._task, self._recipe, self._recipe.at
        own = [*task.options, f"seed={self._seed}"]
        config, options = recipe.stage_1(task)
        command = ["dimred.pipelines.stage_1", self._data, "--config", config, "--out", self._run, "--resume"]
        run_module(command, [*own, f"epochs={recipe.end}", *options])
        published = [] if task.has_own_recipe else ["data.batch_size=256"]
        self._stage_2("search", task.config, [*own, *published, *SEARCH, BFGS])
        cooldown = ["cooldown.keep_best=false", "epochs=2", "cooldown.factor=1.0"]
        self._stage_2("cooldown", task.config, [*own, *cooldown])
        if recipe.is_constant:
            self._plain(own)
        one = load_config(StageOneConfig, self._run / "config.yaml")
        set_up(self._seed)
        two = load_config(StageTwoConfig, task.config, own).with_epochs_after(at)
        measuring = Measuring(one, two, self._data)
        rows = list(self._rows(measuring))
        kind = "test_losses"
        if rows[0].of_test.dtype == bool:
            kind = "test_correct"
        of_test = np.stack([row.of_test for row in rows])
        arrays = {
            "names": np.array([row.name for row in rows]), "passes": np.array([row.passes for row in rows]),
            "val_losses": np.array([row.val_loss for row in rows]), "n_test": np.array(of_test.shape[1]),
            kind: np.packbits(of_test, 1) if kind == "test_correct" else of_test.astype(np.float32),
            "as_trained": np.array([row.as_trained for row in rows]), "moved": np.array([row.moved for row in rows]),
        }  # fmt: skip
        self._store.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(self._store, **arrays)
        for folder in self._run.parent.glob(f"{self._run.name}*"):
            if folder.is_dir():
                shutil.rmtree(folder)

    def _stage_2(self, name: str, config: Path, options: list[str]) -> None:
        weights = full_checkpoints(self._run / STAGE_1_CHECKPOINTS)[self._recipe.at]
        out = self._run.with_name(f"{self._run.name}_{name}")
        run_module(
            ["dimred.pipelines.stage_2", self._data, weights, "--config", config, "--out", out, "--resume"], options
        )

    def _plain(self, own: list[str]) -> None:
        """Train with a schedule made for the passes that the search ends after."""
        schedule = ["schedule.name=linear", f"schedule.total_epochs={AS_MANY}", f"schedule.peak={self._task.peak}"]
        config, options = self._recipe.stage_1(self._task)
        command = ["dimred.pipelines.stage_1", self._data, "--config", config, "--out", self._made, "--resume"]
        run_module(command, [*own, *options, f"epochs={AS_MANY}", "snapshots.first_epoch=1000", *schedule])

    @property
    def _made(self) -> Path:
        return self._run.with_name(f"{self._run.name}_made")

    def _rows(self, measuring: Measuring) -> Iterator[Row]:
        layout, at = measuring.evaluator.layout, self._recipe.at
        choosing = FORWARD * measuring.evaluator.passes_each

        def row(name: str, passes: float, weights: np.ndarray, file: Path | None = None, *moved: float) -> Row:
            as_trained = np.nan
            if file is not None:
                from_arrays(measuring.network.get_parameters(), read_checkpoint(file), measuring.network)
                as_trained = measuring.evaluator.metrics("test")[0]
            measuring.put(weights)
            kind, found = measuring.outputs("test")
            of_test = found if kind == "losses" else found.argmax(-1) == measuring.labels("test")
            return Row(name, passes, measuring.mean_loss("val"), of_test, as_trained, moved or (0.0, 0.0))

        def of_file(name: str, passes: float, file: Path, *moved: float) -> Row:
            arrays = read_checkpoint(file)
            return row(name, passes, layout.flatten({one: arrays[one] for one in layout.names}), file, *moved)

        for epoch, file in sorted(full_checkpoints(self._run / STAGE_1_CHECKPOINTS).items()):
            if epoch >= at:
                yield of_file(f"plain {epoch}", epoch, file)
        if self._recipe.is_constant:
            file = full_checkpoints(self._made / STAGE_1_CHECKPOINTS)[AS_MANY]
            yield of_file(f"made for {AS_MANY}", AS_MANY, file)
        for name in ("search", "cooldown"):
            folder = self._run.with_name(f"{self._run.name}_{name}")
            result = StageTwoResult.read(folder / RESULT)
            moved = (result.totals.get("moved_inside", 0.0), result.totals.get("moved_outside", 0.0))
            for file in sorted((folder / STAGE_2_CHECKPOINTS).glob("*-[0-9]*_*.ckpt")):
                epoch = int(file.stem.rpartition("-")[2].partition("_")[0])
                yield of_file(f"{name} {epoch}", at + result.training_passes(epoch), file, *moved)
        series = CheckpointSeries.open(self._run / STAGE_1_CHECKPOINTS / SNAPSHOTS).select(until_epoch=at)
        series = series.select(last=KEPT) if len(series) > KEPT else series
        averages, n = SnapshotAverages.of_series(series, layout), len(series)
        windows = dict[Window, Row]()

        def loss(window: Window) -> float:
            windows[window] = row(window.name(averages.steps), at, averages.of(window))
            return windows[window].val_loss

        measure_windows(n, loss)
        cost = choosing * (len(windows) + 1)  # and the last weights
        yield from (found._replace(passes=at + cost) for found in windows.values())
        vectors = np.stack([averages.of(Window(number, number + 1)) for number in range(n)])
        for window in windows:
            if window.profile == "uniform" and window.end - window.first > 2:
                name = window.name(averages.steps).replace("uniform", "median")
                yield row(name, at + cost, np.median(vectors[window.first : window.end], 0).astype(np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipe", choices=list(RECIPES), default="published")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["digits", "noisy", "photos", "fashion"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for name in arguments.tasks:
            Claim(arguments.out.resolve(), arguments.recipe, name, seed).make()


if __name__ == "__main__":
    main()
