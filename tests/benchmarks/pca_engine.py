"""Compute the principal directions of snapshots in one way, in a process of its own; see ``measured``."""

from pathlib import Path

import numpy as np

from dimred.checkpoints.series import CheckpointSeries
from tests.benchmarks import measured
from tests.benchmarks.measured import Engine, Point, cost_of, read_and_write

_LAYER = 2_359_296  # weights of a layer, as the largest of ResNet-18
Cost = dict[str, float]


def prepare(folder: Path, point: Point) -> Cost:
    """Write snapshots of a random walk with steps of a hundredth of the weights' size."""
    rng = np.random.default_rng(0)
    pool = rng.standard_normal(2 * _LAYER, np.float32)

    def noise(size: int) -> np.ndarray:
        first = rng.integers(_LAYER)
        return pool[first : first + size]

    sizes = [min(_LAYER, point["weights"] - first) for first in range(0, point["weights"], _LAYER)]
    weights = {f"layer{number}": noise(size).copy() for number, size in enumerate(sizes)}
    series = CheckpointSeries.create(folder / "snapshots", keep=None)
    for step in range(1, point["snapshots"] + 1):
        for weight in weights.values():
            weight += np.float32(0.01) * noise(weight.size)
        series.append(weights, step=step, epoch=step)
    return {}


def _k(point: Point) -> int:
    return min(32, point["snapshots"] - 1)


def dimred_pca(folder: Path, point: Point) -> Cost:
    from dimred.subspace.fit import fit_basis

    series = CheckpointSeries.open(folder / "snapshots")
    return cost_of(lambda: fit_basis(series, _k(point), out=folder / "pca_mat.npy", overwrite=True))


def least(folder: Path, point: Point) -> Cost:
    """Read every snapshot once, and write the rows."""
    paths, size = CheckpointSeries.open(folder / "snapshots").paths, 4 * _k(point) * point["weights"]
    return cost_of(lambda: read_and_write(paths, folder / "written", size))


def boost(folder: Path, point: Point) -> Cost:
    import mindspore
    from mindspore.boost import base

    layout = CheckpointSeries.open(folder / "snapshots").layout
    assert layout is not None
    shapes = zip(layout.names, layout.shapes, strict=True)
    parameters = [mindspore.Parameter(mindspore.Tensor(np.zeros(s, np.float32)), name=n) for n, s in shapes]
    network = type("Network", (), {"trainable_params": lambda self: parameters})()

    def run() -> None:
        rows = base._compute_pca_mat(base._load_weights(str(folder / "snapshots"), network), _k(point))
        np.save(folder / "boost.npy", rows)

    return cost_of(run)


ENGINES: dict[str, Engine] = {
    "prepare": prepare,
    "dimred pca": dimred_pca,
    "reading and writing once": least,
    "MindSpore boost": boost,
}

if __name__ == "__main__":
    measured.main(ENGINES)
