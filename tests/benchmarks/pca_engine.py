"""Compute 32 principal directions of a folder of snapshots in one way, in a process of its own.

Usage: python -m tests.benchmarks.pca_engine ENGINE FOLDER OUT. Prints the seconds and the processor's seconds, without
imports, and the peak memory.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

K = 32


def dimred_engine(folder: Path, out: Path) -> Callable[[], None]:
    from dimred.checkpoints.series import CheckpointSeries
    from dimred.subspace.fit import fit_basis

    return lambda: fit_basis(CheckpointSeries.open(folder), K, out=out) and None


def boost_engine(folder: Path, out: Path) -> Callable[[], None]:
    import mindspore
    from mindspore.boost import base

    from dimred.checkpoints.series import CheckpointSeries

    layout = CheckpointSeries.open(folder).layout
    assert layout is not None
    shapes = zip(layout.names, layout.shapes, strict=True)
    parameters = [mindspore.Parameter(mindspore.Tensor(np.zeros(s, np.float32)), name=n) for n, s in shapes]
    network = type("Network", (), {"trainable_params": lambda self: parameters})()

    def run() -> None:
        np.save(out, base._compute_pca_mat(base._load_weights(str(folder), network), K))

    return run


def read_matrix(folder: Path) -> np.ndarray:
    from dimred.checkpoints.matrix import WeightMatrix
    from dimred.checkpoints.series import CheckpointSeries

    matrix = WeightMatrix(CheckpointSeries.open(folder))
    snapshots = np.empty(matrix.shape, np.float32)
    matrix.read(0, snapshots)
    return snapshots


def sklearn_pca(folder: Path, out: Path) -> Callable[[], None]:
    from sklearn.decomposition import PCA

    return lambda: np.save(out, PCA(K, svd_solver="full").fit(read_matrix(folder)).components_)


def sklearn_incremental(folder: Path, out: Path) -> Callable[[], None]:
    from sklearn.decomposition import IncrementalPCA

    return lambda: np.save(out, IncrementalPCA(K).fit(read_matrix(folder)).components_)


def sklearn_randomised(folder: Path, out: Path) -> Callable[[], None]:
    from sklearn.decomposition import PCA

    return lambda: np.save(out, PCA(K, svd_solver="randomized", random_state=0).fit(read_matrix(folder)).components_)


def float64_svd(folder: Path, out: Path) -> Callable[[], None]:
    import scipy.linalg

    def run() -> None:
        snapshots = read_matrix(folder).astype(np.float64)
        snapshots -= snapshots.mean(axis=0)
        # The transpose is in Fortran order, so that LAPACK works in place.
        directions, _, _ = scipy.linalg.svd(snapshots.T, full_matrices=False, overwrite_a=True, check_finite=False)
        np.save(out, directions.T[:K])

    return run


ENGINES = {
    "float64 SVD (SciPy)": float64_svd,
    "dimred pca": dimred_engine,
    "MindSpore boost": boost_engine,
    "scikit-learn PCA": sklearn_pca,
    "scikit-learn IncrementalPCA": sklearn_incremental,
    "randomised SVD (scikit-learn)": sklearn_randomised,
}


def main() -> None:
    name, folder, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    run = ENGINES[name](folder, out)
    started, cpu_started = time.perf_counter(), time.process_time()
    run()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    print(f"RESULT {seconds} {cpu_seconds} {peak}")


if __name__ == "__main__":
    main()
