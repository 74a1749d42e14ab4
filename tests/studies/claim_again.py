"""Run stage 1 and the search of the published claim again, and store what they reach, as ``published_claim`` reads it.

    python -m tests.studies.claim_again OUT                 # seed 1 of each task, the cheapest first; hours of one core
    python -m tests.studies.published_claim tests/studies/claims/published --again OUT/claims/published

The recipe ``published`` is 70 epochs of a schedule of 90, and ``constant`` is 40 epochs at a constant rate; the search
follows for two epochs. Everything runs by ``dimred train``, one process at a time. A call that was killed goes on where
it was; what is stored is not run again. Seed 1 of both recipes takes six minutes of an idle core on digits, half an
hour on Fashion-MNIST and on the source code.
"""

import argparse
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.config import StageOneConfig, load_config
from dimred.data.digits import write_digits
from dimred.evaluation.measures import measure_batches
from dimred.evaluation.scores import means_of_samples
from dimred.run_files.run_names import CONFIG, PINS, RESULT, STAGE_1_CHECKPOINTS, STAGE_2_CHECKPOINTS, full_checkpoints
from dimred.run_files.stage_two_result import StageTwoResult
from dimred.runs.device import set_up
from dimred.runs.task import build_task
from dimred.vectors.parameters import from_arrays
from tests.studies.fashion_mnist import write_fashion_mnist
from tests.studies.photos import write_photos
from tests.studies.tables import write_table

HERE = Path(__file__).parent


class Recipe(NamedTuple):
    """Where the search starts, and what stage 1 sets beside its file."""

    at: int
    image_config: str  # of a task of images
    own_options: tuple[str, ...]  # beside a task's own file, which has a constant rate
    options: tuple[str, ...]


RECIPES = {
    "published": Recipe(
        70, "digits", ("schedule.name=linear", "schedule.total_epochs=90"), ("snapshots.first_epoch=31",)
    ),
    "constant": Recipe(40, "digits_cooldown", (), ("stop=null",)),
}


class Task(NamedTuple):
    """What writes the data of a seed, and how the task is configured; without a file, as the recipe's images."""

    write: Callable[[Path, int], Any]
    options: tuple[str, ...] = ()
    file: str = ""


def _library(out: Path, seed: int) -> None:
    out.symlink_to(sysconfig.get_path("stdlib"))


TASKS = {
    "satimage": Task(partial(write_table, name="satimage"), file="satimage.yaml"),
    "letter": Task(partial(write_table, name="letter"), file="letter.yaml"),
    "digits": Task(write_digits),
    "noisy": Task(partial(write_digits, label_noise=0.4)),
    "photos": Task(write_photos, ("model.n_classes=8",)),
    "fashion": Task(write_fashion_mnist, ("data.image_size=28",)),
    "source": Task(_library, file="source_code.yaml"),
}


def make(out: Path, recipe: str, name: str, seed: int) -> None:
    """Run a task and seed by a recipe, and store the last weights of stage 1, and those of the search."""
    store = out / "claims" / recipe / f"{name}_{seed}.npz"
    if store.exists():
        return
    task, stage_1 = TASKS[name], RECIPES[recipe]
    data, runs = out / "data" / f"{name}_{seed}", out / f"{recipe}_{name}_{seed}"
    if not data.exists():
        data.parent.mkdir(parents=True, exist_ok=True)
        task.write(data, seed)
    options = [f"seed={seed}", f"epochs={stage_1.at}", "evaluate_every_epochs=200", "snapshots.keep=99"]
    options += [*task.options, *stage_1.options, *(stage_1.own_options if task.file else ())]
    config = ["--config", HERE / task.file if task.file else stage_1.image_config]
    one, two = (runs / f"device0_stage_{number}" for number in (1, 2))
    train(one, "stage-1", [data], [*config, *sets(options)])
    weights = full_checkpoints(one / STAGE_1_CHECKPOINTS)[stage_1.at]
    published = [] if task.file else ["data.batch_size=256"]
    train(two, "stage-2", [data, weights], sets(["method=search", "epochs=2", *published]))
    arrays = measured(one, two, data, weights)
    store.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(store, **arrays)
    shutil.rmtree(runs)


def sets(options: list[str]) -> list[str]:
    return [f"--set={option}" for option in options]


def train(run: Path, stage: str, paths: list[Path], begin: list[Any]) -> None:
    """Run ``dimred train``, with the options ``begin`` unless the run has begun."""
    command = [sys.executable, "-m", "dimred", "train", stage, *paths, "--out", run.parent, "--resume"]
    subprocess.run(list(map(str, command + ([] if (run / PINS).exists() else begin))), check=True)


def measured(one: Path, two: Path, data: Path, weights: Path) -> dict[str, np.ndarray]:
    """Measure the weights that a search began from, and those of its last epoch, with BatchNorm re-estimated."""
    config, result = load_config(StageOneConfig, one / CONFIG), StageTwoResult.read(two / RESULT)
    set_up(config.seed)
    task = build_task(config, data, splits=("train", "val", "test"))
    [end] = (two / STAGE_2_CHECKPOINTS).glob(f"*-{result.epochs:.0f}_*.ckpt")
    passes = {weights: 0.0, end: result.training_passes(result.epochs)}
    moved = {weights: (0.0, 0.0), end: (result.totals["moved_inside"], result.totals["moved_outside"])}
    val_losses, as_trained, of_test = [], [], []
    for file in (weights, end):
        from_arrays(task.network.get_parameters(), read_checkpoint(file), str(file))
        as_trained.append(task.evaluator.metrics("test")[0])
        task.evaluator.reestimate()
        val_losses.append(task.evaluator.losses_and_metrics("val")[0].mean())
        [sums], _ = measure_batches(task.network, task.images["test"].evaluation(), [task.scores.metrics[0]])
        of_test.append(means_of_samples(sums))
    if task.metrics[0].is_fraction:
        outputs = {"test_correct": np.packbits(np.array(of_test) > 0, 1), "n_test": np.array(len(of_test[0]))}
    else:
        outputs = {"test_losses": np.array(of_test, np.float32)}
    return outputs | {
        "names": np.array([f"plain {config.epochs}", f"search {result.epochs:.0f}"]),
        "passes": config.epochs + np.array(list(passes.values())),
        "val_losses": np.array(val_losses),
        "as_trained": np.array(as_trained),
        "moved": np.array(list(moved.values())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipes", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    given = parser.parse_args()
    for seed in given.seeds:
        for name in given.tasks:
            for recipe in given.recipes:
                make(given.out.resolve(), recipe, name, seed)


if __name__ == "__main__":
    main()
