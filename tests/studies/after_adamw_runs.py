"""Run the study of the directions after AdamW, and store what every network gives on each sample.

    python -m tests.studies.after_adamw_runs OUT          # hours of one core; what is in OUT is not run again
    python -m tests.studies.after_adamw_runs OUT --tasks photos --seeds 1 2

On photographs a seed that is in no table chooses the rates from a grid; on source code an earlier study has chosen
them. Then each seed trains stage 1 at a constant rate to epoch 45, and keeps the weights after each epoch and their
mean over its steps. From epoch 40 it ends in several ways, each after 45 passes; ``after_adamw.md`` says what the rows
are. A process makes one task and seed. A call that was killed repeats the stage 1, or the end, at which it was.
``OUT/store/TASK_SEED.npz`` has the result.
"""

import argparse
import math
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import mindspore as ms
import numpy as np

from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig, StageTwoConfig, load_config
from dimred.data.batches import STAGE_2_EPOCHS_FROM, Batches, read_batches
from dimred.distributed.ranks import ALONE
from dimred.errors import NothingAcceptedError
from dimred.evaluation.measures import MeanOfItems, MeansOfSamples, measure_batches
from dimred.run_files.stage_two_result import FORWARD
from dimred.runs.device import set_up
from dimred.runs.steps import build_optimizer, join_step
from dimred.runs.task import build_task
from dimred.stages.search import build_search_step
from dimred.subspace.basis import SubspaceBasis, load_basis
from dimred.subspace.fit import fit_basis
from dimred.train_step.optimizer_state import is_rate
from dimred.train_step.schedule import make_rates, with_cooldown
from dimred.vectors.parameters import from_arrays, put_array
from tests.studies.photos import write_photos

HERE = Path(__file__).parent
END = 40  # the epoch of stage 1 from which the ends begin
BUDGET = 5  # passes of an end
TOTAL = END + BUDGET
FIRST_SNAPSHOT = 6
AVERAGED = 44  # the last epoch of stage 1 for an average, so that choosing it fits into the budget
LENGTHS = (3, 5, 8, 13, 21)  # of the averages that end at epoch ``AVERAGED``; then all snapshots
N_COMPONENTS = 32
FEW_COMPONENTS = 3
TUNING_SEED = 6
ENDS_OF_TUNING = ("cooldown", "search, 32 directions")  # the better of these chooses the constant rate

Measured = dict[str, np.ndarray]


class Rates(NamedTuple):
    """The constant rate of stage 1, and the peak of the cosine."""

    constant: float
    cosine: float


class Task(NamedTuple):
    """What writes the data of a seed, and how the task is configured; the seeds, the rates, or the grid to choose from.

    Attributes:
        chosen: the rates that an earlier study has chosen; None where ``TUNING_SEED`` chooses from ``grid``.
    """

    write: Callable[[Path, int], Any]
    config: Path
    of_both: tuple[str, ...]
    of_stage_1: tuple[str, ...]
    of_search: tuple[str, ...]
    seeds: tuple[int, ...]
    grid: tuple[float, ...] = ()
    chosen: Rates | None = None


def _library(out: Path, seed: int) -> None:
    out.symlink_to(sysconfig.get_path("stdlib"))


TASKS = {
    "photos": Task(
        write_photos,
        Path("digits_cooldown"),
        ("model.n_classes=8",),
        ("stop=null", "optimizer.name=adamw", "optimizer.weight_decay=0.05"),
        ("data.batch_size=256",),
        seeds=(1, 2, 3, 4, 5),
        grid=(0.001, 0.003, 0.01),
    ),
    "source": Task(
        _library, HERE / "source_code.yaml", (), (), (), seeds=(2, 3, 4, 5), chosen=Rates(constant=0.004, cosine=0.004)
    ),
}


class StageOne(NamedTuple):
    """What a stage 1 leaves: its state after epoch ``END``, and weights, (M,), or (epochs, M) from the first snapshot.

    Attributes:
        state: name -> array, of everything that the step needs to go on.
        points: the weights after each epoch.
        means: the mean of the weights after each step of each epoch.
        last: the weights after the last epoch.
    """

    state: dict[str, np.ndarray]
    points: np.ndarray
    means: np.ndarray
    last: np.ndarray


class Kept:
    """The batches of a split, in memory, as ``measure_batches`` reads them."""

    def __init__(self, split: Batches) -> None:
        self._batches = list(read_batches(split.evaluation))

    def create_tuple_iterator(self, num_epochs: int = 1) -> Iterator[Any]:
        return iter(self._batches)


class Training:
    """The trainings of one task and seed, in one process with one compiled step."""

    def __init__(self, task: Task, data: Path, seed: int) -> None:
        options = [f"seed={seed}", f"epochs={TOTAL}", *task.of_both, *task.of_stage_1]
        self._settings = load_config(StageOneConfig, task.config, options)
        set_up(seed)
        ms.device_context.cpu.op_tuning.threads_num(1)  # more threads wait for each other where the machine is shared
        self._task = build_task(self._settings, data, splits=("train", "val", "test"))
        self._per_epoch = self._task.steps_per_epoch
        optimizer = build_optimizer(self._settings.optimizer, self._task.network, [0.0] * (TOTAL * self._per_epoch))
        self._rates = [parameter for parameter in optimizer.get_parameters() if is_rate(parameter)]
        self._step = join_step(self._settings, self._task.network, optimizer, ALONE)
        self._begin = self._step.state()
        self.layout = self._task.evaluator.layout
        self.is_text = not self._task.metrics[0].is_fraction
        self._measured_on = {split: Kept(self._task.images[split]) for split in ("val", "test")}

    def constant(self, rate: float, until: int) -> StageOne:
        """Train at a constant rate after the warm-up until an epoch, and keep what the ends begin from."""
        self._restart(self._begin, self._schedule("constant", rate))
        points, means, state = list[np.ndarray](), list[np.ndarray](), dict[str, np.ndarray]()
        for epoch in range(1, until + 1):
            total = np.zeros(self.layout.size)
            for _ in self._steps(epoch):
                if FIRST_SNAPSHOT <= epoch <= AVERAGED:
                    total += self._weights()
            if FIRST_SNAPSHOT <= epoch <= AVERAGED:
                points.append(self._weights())
                means.append((total / self._per_epoch).astype(np.float32))
            if epoch == END:
                state = self._step.state()
        return StageOne(state, np.array(points), np.array(means), self._weights())

    def cool_down(self, state: dict[str, np.ndarray], rate: float) -> np.ndarray:
        """Bring the whole rate to 0, linearly, in as many epochs as the budget has; return the weights (M,)."""
        done, n_steps = END * self._per_epoch, BUDGET * self._per_epoch
        self._restart(state, with_cooldown(np.full(done + 1, rate), done, n_steps))
        for epoch in range(1, BUDGET + 1):
            for _ in self._steps(STAGE_2_EPOCHS_FROM + epoch):
                pass
        return self._weights()

    def cosine(self, peak: float) -> np.ndarray:
        """Train from the beginning with a cosine schedule made for all passes; return the weights (M,)."""
        self._restart(self._begin, self._schedule("cosine", peak))
        for epoch in range(1, TOTAL + 1):
            for _ in self._steps(epoch):
                pass
        return self._weights()

    def measure(self, weights: np.ndarray) -> Measured:
        """Measure weights (M,) on ``val`` and ``test``, with BatchNorm re-estimated, sample by sample."""
        task, found = self._task, Measured()
        task.evaluator.put(weights)
        for split, batches in self._measured_on.items():
            metric = cast(MeanOfItems, task.scores.metrics[0]).score
            measures = [MeansOfSamples(task.scores.loss), MeansOfSamples(metric)]
            (losses, metrics), _ = measure_batches(task.network, batches, measures)
            found[f"{split}_losses"] = measures[0].of_split(losses)
            found[f"{split}_metric"] = measures[1].of_split(metrics)
        return found

    @property
    def passes_to_measure(self) -> float:
        """Return what measuring one network on ``val`` costs, BatchNorm included, in passes."""
        return FORWARD * self._task.evaluator.passes_each

    def _schedule(self, name: Any, rate: float) -> np.ndarray:
        warmup = self._settings.schedule.warmup_epochs * self._per_epoch
        return make_rates(name, rate, warmup, TOTAL * self._per_epoch)

    def _restart(self, state: dict[str, np.ndarray], rates: np.ndarray) -> None:
        self._step.restore(state, "the state")
        for parameter in self._rates:
            put_array(parameter, rates)

    def _steps(self, order: int) -> Iterator[None]:
        batches = self._task.training_batches
        for batch in read_batches(lambda: batches.training_epoch(self._settings.seed, order)):
            self._step(*batch)
            yield

    def _weights(self) -> np.ndarray:
        named = {parameter.name: parameter.asnumpy() for parameter in self._task.network.trainable_params()}
        return self.layout.flatten(named)


def search(
    task: Task, data: Path, seed: int, state: dict[str, np.ndarray], basis: SubspaceBasis, n_components: int
) -> tuple[np.ndarray, Measured]:
    """Search as published until the passes of the budget are taken.

    Returns:
        The weights (M,), and passes, steps, accepted steps and distances moved.
    """
    options = [f"seed={seed}", "method=search", f"search.n_components={n_components}", *task.of_both, *task.of_search]
    built = build_task(load_config(StageTwoConfig, task.config, options), data, splits=("train", "test"))
    from_arrays(built.network.get_parameters(), state, "the state")
    step, batches = build_search_step(built, basis), built.training_batches
    passes, n_steps, n_accepted, moved, captured = 0.0, 0, 0, np.zeros(2), list[float]()
    epoch = STAGE_2_EPOCHS_FROM
    while passes < BUDGET:
        epoch += 1
        try:
            for batch in read_batches(lambda order=epoch: batches.training_epoch(seed, order)):
                result = step(*batch)
                whole = FORWARD * result.n_forward + (1 - FORWARD) * result.n_backward
                passes += whole * len(batch[0]) / batches.n_images
                n_steps, n_accepted = n_steps + 1, n_accepted + result.accepted
                moved += result.moved_inside, result.moved_outside
                captured.append(result.captured_fraction)
                if passes >= BUDGET:
                    break
        except NothingAcceptedError as stop:
            print(stop, flush=True)
            break
    layout = built.evaluator.layout
    weights = layout.flatten({one.name: one.asnumpy() for one in built.network.trainable_params()})
    told = [passes, n_steps, n_accepted, *moved, np.nanmean(captured)]
    return weights, {"passes": np.array(END + passes), "search": np.array(told)}


def fit(points: np.ndarray, training: Training, folder: Path) -> SubspaceBasis:
    """Fit the directions of snapshots (n, M) up to epoch ``END``, by the files that a run would have."""
    if not (folder / "manifest.json").exists():
        series = CheckpointSeries.create(folder, keep=None)
        for epoch, point in enumerate(points[: END - FIRST_SNAPSHOT + 1], FIRST_SNAPSHOT):
            series.append(training.layout.unflatten(point), step=epoch, epoch=epoch)
    return fit_basis(folder, N_COMPONENTS, layout=training.layout)


def random_basis(training: Training, seed: int, path: Path) -> SubspaceBasis:
    """Draw orthonormal directions, another draw for each seed."""
    normal = np.random.default_rng([seed, N_COMPONENTS]).standard_normal((training.layout.size, N_COMPONENTS))
    np.save(path, np.linalg.qr(normal)[0].T.astype(np.float32))
    return load_basis(path, layout=training.layout)


class Cell:
    """One task and seed in OUT: what is made of it is written at once, and is not made again."""

    def __init__(self, out: Path, name: str, seed: int) -> None:
        self._task, self._seed, self._folder = TASKS[name], seed, out / f"{name}_{seed}"
        self._store = out / "store" / f"{name}_{seed}.npz"
        self._data = out / "data" / f"{name}_{seed}"
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._data.exists():
            self._data.parent.mkdir(parents=True, exist_ok=True)
            self._task.write(self._data, seed)
        self._training = Training(self._task, self._data, seed)

    def tune(self) -> None:
        """Train with each rate of the grid, and store what decides between them."""
        found = dict[str, Measured]()
        for rate in self._task.grid:
            stage_1 = self._stage_1(rate, END)
            for name in ENDS_OF_TUNING:
                found[f"constant rate {rate:g}: {name}"] = self._end(name, stage_1, rate)
            found[f"cosine {rate:g}"] = self._cosine(rate)
        self._write(found)

    def run(self, rates: Rates) -> None:
        """Make every row with the rates that were chosen, and store them."""
        stage_1 = self._stage_1(rates.constant, TOTAL)
        found = {"last weights": self._measured("last weights", lambda: (stage_1.last, passes_of(TOTAL)))}
        for name in (
            "cooldown",
            "search, 32 directions",
            "search, 3 directions",
            "search, 32 random directions",
            "search, 32 directions of the means",
        ):
            found[name] = self._end(name, stage_1, rates.constant)
        for content, snapshots in (("points", stage_1.points), ("means", stage_1.means)):
            for length in (*LENGTHS, len(snapshots)):
                found[f"{content}, newest {length}"] = self._average(content, snapshots, length)
        found["cosine"] = self._cosine(rates.cosine)
        self._write(found)

    def _stage_1(self, rate: float, until: int) -> StageOne:
        file, prefix = self._folder / f"stage_1_{rate:g}.npz", "state:"
        if not file.exists():
            began = time.perf_counter()
            made = self._training.constant(rate, until)._asdict()
            state = {prefix + name: value for name, value in made.pop("state").items()}
            save(file, made | state)
            tell(f"{file.name} of {self._folder.name}", began)
        with np.load(file) as stored:
            arrays = {name: stored[name] for name in stored.files}
        state = {name.removeprefix(prefix): arrays.pop(name) for name in list(arrays) if name.startswith(prefix)}
        return StageOne(state=state, **arrays)

    def _end(self, name: str, stage_1: StageOne, rate: float) -> Measured:
        training = self._training

        def make() -> tuple[np.ndarray, Measured]:
            if name == "cooldown":
                return training.cool_down(stage_1.state, rate), passes_of(TOTAL)
            ratios = np.zeros(0)
            if name == "search, 32 random directions":
                basis = random_basis(training, self._seed, self._folder / "random.npy")
            else:
                of_means = name.endswith("means")
                snapshots = stage_1.means if of_means else stage_1.points
                basis = fit(snapshots, training, self._folder / f"{'means' if of_means else 'points'}_{rate:g}")
                ratios = np.array(basis.explained_variance_ratio)
            k = FEW_COMPONENTS if name == "search, 3 directions" else N_COMPONENTS
            weights, told = search(self._task, self._data, self._seed, stage_1.state, basis, k)
            return weights, told | {"explained": ratios}

        return self._measured(f"{rate:g} {name}", make)

    def _average(self, content: str, snapshots: np.ndarray, length: int) -> Measured:
        choosing = (len(LENGTHS) + 1) * self._training.passes_to_measure
        mean = snapshots[-length:].mean(0, dtype=np.float64).astype(np.float32)
        return self._measured(f"{content}, newest {length}", lambda: (mean, passes_of(AVERAGED + choosing)))

    def _cosine(self, peak: float) -> Measured:
        return self._measured(f"cosine {peak:g}", lambda: (self._training.cosine(peak), passes_of(TOTAL)))

    def _measured(self, name: str, make: Callable[[], tuple[np.ndarray, Measured]]) -> Measured:
        """Return what is in the file of a row; make and measure the row's weights if there is none."""
        file = self._folder / f"{'_'.join(name.replace(',', '').split())}.npz"
        if not file.exists():
            began = time.perf_counter()
            weights, told = make()
            save(file, self._training.measure(weights) | told)
            tell(f"{name} of {self._folder.name}", began)
        with np.load(file) as stored:
            return {key: stored[key] for key in stored.files}

    def _write(self, found: dict[str, Measured]) -> None:
        """Write the file of the store: the passes of each network, its losses, and which samples it got right."""
        rows = list(found.values())
        arrays = {"names": np.array(list(found)), "passes": np.array([row["passes"] for row in rows])}
        for split in ("val", "test"):
            losses = np.array([row[f"{split}_losses"] for row in rows])
            if self._training.is_text:
                arrays[f"{split}_losses"] = losses
                continue
            right = np.array([row[f"{split}_metric"] for row in rows]) > 0
            arrays[f"{split}_correct"], arrays[f"n_{split}"] = np.packbits(right, 1), np.array(right.shape[1])
            arrays[f"{split}_mean_loss"] = losses.mean(1, dtype=np.float64)
            if split == "val":
                arrays["val_losses"] = losses.astype(np.float16)
        for name, row in found.items():
            if "search" in row:
                arrays |= {f"{name}: search": row["search"], f"{name}: explained": row["explained"]}
        self._store.parent.mkdir(exist_ok=True)
        save(self._store, arrays, compressed=True)


def passes_of(passes: float) -> Measured:
    return {"passes": np.array(float(passes))}


def save(file: Path, arrays: Measured, *, compressed: bool = False) -> None:
    """Write a file whole or not at all."""
    part = file.with_suffix(".part")
    with part.open("wb") as opened:
        (np.savez_compressed if compressed else np.savez)(opened, **arrays)
    part.rename(file)


def tell(what: str, began: float) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}: {time.perf_counter() - began:.0f} s", flush=True)


def chosen_rates(store: Path) -> Rates:
    """Return the rates that the losses on ``val`` of the tuning seed choose.

    A constant rate has the loss of the better of its two ends.
    """
    with np.load(store, allow_pickle=False) as stored:
        losses = dict(zip(stored["names"].tolist(), stored["val_losses"].mean(1, dtype=np.float64), strict=True))
    best = {"constant": (math.inf, 0.0), "cosine": (math.inf, 0.0)}
    for name, loss in losses.items():
        kind, *_, rate = name.partition(":")[0].split()
        best[kind] = min(best[kind], (float(loss), float(rate)))
    return Rates(best["constant"][1], best["cosine"][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", help="by default those of the study")
    parser.add_argument("--here", action="store_true", help="make the one task and seed in this process")
    given = parser.parse_args()
    out = given.out.resolve()
    for name in given.tasks:
        task = TASKS[name]
        tuning = [] if task.chosen else [TUNING_SEED]
        for seed in given.seeds or [*tuning, *task.seeds]:
            if (out / "store" / f"{name}_{seed}.npz").exists():
                continue
            if given.here and seed in tuning:
                Cell(out, name, seed).tune()
            elif given.here:
                Cell(out, name, seed).run(task.chosen or chosen_rates(out / "store" / f"{name}_{TUNING_SEED}.npz"))
            else:
                cell = [str(out), "--tasks", name, "--seeds", str(seed), "--here"]
                subprocess.run([sys.executable, "-m", "tests.studies.after_adamw_runs", *cell], check=True)


if __name__ == "__main__":
    main()
