"""Write a snapshot or a state of a run, or read a state back, in a process of its own; see ``measured``.

A state has the weights and the momentum of each. Beside each stands MindSpore's own function on the same arrays, which
does not flush to the disk, and writing and flushing, or reading, as many bytes.
"""

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dimred.checkpoints.series import CheckpointSeries
from dimred.checkpoints.states import RunStates, check_finite
from tests.benchmarks import measured
from tests.benchmarks.measured import Engine, Point, cost_of, read_and_write

_LAYER = 2_359_296  # weights of a layer at most
_TIMES = 7  # the first writes meet memory that the machine has not used yet
Cost = dict[str, float]


def arrays(point: Point, copies: int = 1) -> dict[str, np.ndarray]:
    """Return random layers of so many weights, and as many more for each further copy."""
    pool = np.random.default_rng(0).standard_normal(_LAYER, np.float32)
    firsts = range(0, point["weights"], _LAYER)
    return {
        f"{copy}.layer{first // _LAYER}": pool[: point["weights"] - first].copy()
        for copy in range(copies)
        for first in firsts
    }


def median_of(work: Callable[[int], object]) -> Cost:
    """Do the work a few times; return the medians of what it cost."""
    costs = [cost_of(lambda number=number: work(number)) for number in range(_TIMES)]  # type: ignore[misc]
    return {name: statistics.median(cost[name] for cost in costs) for name in costs[0]}


def append(folder: Path, point: Point) -> Cost:
    weights, series = arrays(point), CheckpointSeries.create(folder / "snapshots", keep=2)
    cost = median_of(lambda number: series.append(weights, step=number + 1, epoch=number + 1))
    shutil.rmtree(series.directory)
    return cost


def save(folder: Path, point: Point) -> Cost:
    state, states = arrays(point, 2), RunStates(folder / "run")

    def work(number: int) -> None:
        check_finite(state, number)
        states.save(number, state, {})

    return median_of(work)


def resume(folder: Path, point: Point) -> Cost:
    return median_of(lambda _: RunStates(folder / "run").newest(print))


def mindspore_save(folder: Path, point: Point, copies: int) -> Cost:
    import mindspore as ms

    entries = [{"name": name, "data": ms.Tensor(value)} for name, value in arrays(point, copies).items()]
    return median_of(lambda _: ms.save_checkpoint(entries, str(folder / f"mindspore_{copies}.ckpt")))


def mindspore_load(folder: Path, point: Point) -> Cost:
    import mindspore as ms

    return median_of(lambda _: ms.load_checkpoint(str(folder / "mindspore_2.ckpt")))


def write(folder: Path, point: Point, copies: int) -> Cost:
    size = 4 * copies * point["weights"]
    return median_of(lambda _: read_and_write((), folder / f"written_{copies}", size))


def read(folder: Path, point: Point) -> Cost:
    return median_of(lambda _: read_and_write([folder / "written_2"]))


ENGINES: dict[str, Engine] = {
    "prepare": lambda folder, point: {},
    "appending a snapshot": append,
    "MindSpore's save_checkpoint": lambda folder, point: mindspore_save(folder, point, 1),
    "writing a snapshot's bytes": lambda folder, point: write(folder, point, 1),
    "saving a state": save,
    "MindSpore's save_checkpoint of a state": lambda folder, point: mindspore_save(folder, point, 2),
    "writing a state's bytes": lambda folder, point: write(folder, point, 2),
    "reading a state": resume,
    "MindSpore's load_checkpoint": mindspore_load,
    "reading a state's bytes": read,
}

if __name__ == "__main__":
    measured.main(ENGINES)
