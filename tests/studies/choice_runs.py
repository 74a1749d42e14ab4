"""Make the store of the study of choices: each task's runs, and what they have to beat, measured by ``choice_store``.

    python -m tests.studies.choice_runs OUT --tasks digits photos --seeds 1 2 --at 25 40 78
    python -m tests.studies.choice_rules OUT/store

For each task and seed one stage 1 at a constant rate runs to the last epoch of ``--at``. From each of these epochs
stage 2 starts, and all candidates of its choice are measured. Beside it stand plain training, with a linear schedule
that is made for as many passes as stage 2 ends after, choosing included, and one run of schedule-free SGD, measured
after as many. ``--fifth`` runs stage 2 for a fifth of all epochs, from the whole of the rate, and measures its last
epoch. What is in OUT already is not run again. A task and seed take 10 minutes of one core to epoch 40, 25 to
epoch 78; call it once for each core. ``fashion`` and ``fashion_all``, with 59,000 images, ``prose``, ``letter`` and
``satimage`` need the files that ``fashion_mnist.py``, ``prose.py`` and ``tables.py`` name.
"""

import argparse
import math
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dimred.data.image_tree import write_digits
from tests.studies.fashion_mnist import ALL, write_fashion_mnist
from tests.studies.photos import write_photos
from tests.studies.prose import DEBIAN
from tests.studies.tables import write_table

HERE = Path(__file__).parent
DIGITS = HERE.parents[1] / "pipelines" / "configs" / "digits_cooldown.yaml"


class Task(NamedTuple):
    """The data of a task, its recipe, and the learning rates of its runs."""

    write: Callable[[Path, int], Any]
    rate: float  # of stage 1, constant
    peak: float  # of plain training: the best on ``val`` of seed 1 among a half, one and two times the rate
    schedule_free: float  # rate of schedule-free SGD: the best on ``val`` of seed 1 among 1, 2 and 4
    options: tuple[str, ...] = ()
    config: Path = DIGITS
    choosing: int = 2  # passes that stage 2's choice costs, rounded up

    @property
    def has_own_recipe(self) -> bool:
        """Return whether it has a YAML file of its own, in place of that of the digits."""
        return self.config != DIGITS

    def passes(self, at: int) -> int:
        """Return the passes that a stage 2 from this epoch ends after, a tenth of all training and its choice."""
        return at + math.ceil(at / 9) + self.choosing


def _noisy(out: Path, seed: int) -> Any:
    return write_digits(out, seed, label_noise=0.4)


def _library(out: Path, seed: int) -> None:
    out.symlink_to(sysconfig.get_path("stdlib"))


def _novels(out: Path, seed: int) -> None:
    out.symlink_to(DEBIAN)


def _all_of_fashion(out: Path, seed: int) -> Any:
    return write_fashion_mnist(out, seed, splits=ALL)


TASKS = {
    "digits": Task(write_digits, 0.2, 0.1, 4),
    "noisy": Task(_noisy, 0.2, 0.4, 4),
    "photos": Task(write_photos, 0.2, 0.2, 1, ("model.n_classes=8",)),
    "fashion": Task(write_fashion_mnist, 0.2, 0.2, 4, ("data.image_size=28",)),
    "fashion_all": Task(_all_of_fashion, 0.2, 0.2, 4, ("data.image_size=28",), choosing=1),
    "source": Task(_library, 0.002, 0.004, 2, (), HERE / "source_code.yaml"),
    "prose": Task(_novels, 0.002, 0.004, 2, (), HERE / "prose.yaml"),  # as on the source code; see the study
    # Of these, the rate of stage 1 is the recipe's.
    "letter": Task(partial(write_table, name="letter"), 0.2, 0.2, 4, (), HERE / "letter.yaml", choosing=1),
    "satimage": Task(partial(write_table, name="satimage"), 0.2, 0.2, 2, (), HERE / "satimage.yaml", choosing=3),
}
RIVALS = {"snoo": "tests.studies.snoo:Snoo", "line": "tests.studies.line:Line"}  # optimizers of plain training
FIRST = ["digits", "noisy", "photos", "fashion", "source"]
EVERYTHING = (
    "stop=null", "evaluate_every_epochs=200", "snapshots.keep=99", "checkpoints.every_epochs=1", "checkpoints.keep=99",
)  # fmt: skip


class Runs:
    """The runs of one task and seed in OUT."""

    def __init__(self, out: Path, name: str, seed: int, rate: float | None) -> None:
        self._task, self._out, self._name, self._seed = TASKS[name], out, f"{name}_{seed}", seed
        self._rate = self._task.rate if rate is None else rate
        self._data = write_data(out, name, seed)

    def stage_2(self, epochs: list[int]) -> None:
        """Train at the constant rate, and store the candidates of a stage 2 from each of these epochs."""
        stores = {at: self._store(f"{at}") for at in epochs}
        self._train(self._name, self._rate, [], stores)

    def plain(self, passes: int, rival: str = "plain", *changes: str) -> None:
        """Train with a schedule made for these passes, and store the last weights."""
        schedule = ["schedule.name=linear", f"schedule.total_epochs={passes}", "snapshots.first_epoch=1000"]
        stores = {passes: self._store(f"{passes}_{rival}")}
        self._train(f"{self._name}_{passes}_{rival}", self._task.peak, [*schedule, *changes], stores, "--weights")

    def schedule_free(self, passes: list[int]) -> None:
        """Train by schedule-free SGD, and store its averaged point after each of these passes."""
        stores = {one: self._store(f"{one}_schedule_free") for one in passes}
        optimizer = ["optimizer.name=schedule_free", "schedule.name=constant"]
        self._train(f"{self._name}_free", self._task.schedule_free, optimizer, stores, "--snapshot")

    def fifth(self, epochs: list[int]) -> None:
        """Store the last epoch of a stage 2 that is a fifth of all epochs and brings the whole of the rate to 0."""
        stores = {at: self._store(f"{at + math.ceil(at / 4)}_fifth") for at in epochs}
        options = ["--last-epoch", "--set=epochs=20%", "--set=cooldown.factor=1.0"]
        self._train(f"{self._name}_fifth", self._rate, [], stores, *options)

    def _store(self, ending: str) -> Path:
        return self._out / "store" / f"{self._name}_{ending}.npz"

    def _train(self, name: str, rate: float, changes: list[str], stores: dict[int, Path], *kind: str) -> None:
        """Run a stage 1 as long as the last of the stores needs it, write them, and remove the run."""
        missing = {at: path for at, path in stores.items() if not path.exists()}
        if not missing:
            return
        run, options, config = self._out / name, self._task.options, self._task.config
        own = [f"seed={self._seed}", f"epochs={max(missing)}", f"schedule.peak={rate}"]
        stage_1 = ["dimred.pipelines.stage_1", self._data, "--config", config, "--out", run, "--resume"]
        run_module(stage_1, [*options, *EVERYTHING, *own, *changes])
        store = ["tests.studies.choice_store", self._data, run, "--config", config, *kind]
        for at, path in missing.items():
            run_module([*store, "--at", at, "--out", path], options)
        for folder in [run, *self._out.glob(f"{name}_stage_2_at_*[0-9]")]:
            shutil.rmtree(folder)


def write_data(out: Path, name: str, seed: int) -> Path:
    """Write the data of a task and seed into a folder under OUT, unless they are there, and return it."""
    data = out / "data" / f"{name}_{seed}"
    if not data.exists():
        data.parent.mkdir(parents=True, exist_ok=True)
        TASKS[name].write(data, seed)
    return data


def run_module(module: list[Any], options: Any) -> None:
    """Run ``python -m`` with a module's name and arguments, and ``--set`` for each option."""
    subprocess.run([sys.executable, "-m", *map(str, module), *(f"--set={option}" for option in options)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=FIRST)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--at", type=int, nargs="+", default=[25, 40, 78], help="epochs")
    parser.add_argument("--rivals", nargs="+", choices=list(RIVALS), default=[], help="plain training with these too")
    parser.add_argument("--rate", type=float, help="of stage 1 alone, in place of the task's; each in its own OUT")
    parser.add_argument("--fifth", type=int, nargs="*", default=[], help="epochs of stage 1 before such a stage 2")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for name in arguments.tasks:
            passes = [TASKS[name].passes(at) for at in arguments.at]
            runs = Runs(arguments.out.resolve(), name, seed, arguments.rate)
            runs.stage_2(arguments.at)
            runs.fifth(arguments.fifth)
            if arguments.rate is None:
                for one in passes:
                    runs.plain(one)
                    for rival in arguments.rivals:
                        runs.plain(one, rival, f"optimizer.name={RIVALS[rival]}")
                runs.schedule_free(passes)


if __name__ == "__main__":
    main()
