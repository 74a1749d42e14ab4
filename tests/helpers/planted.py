"""Snapshots with a known spectrum, as arrays and as files."""

from pathlib import Path

import numpy as np

from dimred.checkpoints.layout import CHUNK
from dimred.checkpoints.series import CheckpointSeries
from dimred.subspace.gram_and_rows import STRIP

# Columns of the fixture ``walk``: two whole blocks, and one of a whole strip and a part of another.
WALK_WIDTH = 2 * CHUNK + STRIP + 4321


def planted(
    n_snapshots: int, n_weights: int, singular_values: np.ndarray, mean_size: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Draw snapshots X = 1 m' + U S V with known singular values: U'U = I, U'1 = 0 and V V' = I.

    Args:
        n_snapshots, n_weights: N and M.
        singular_values: the diagonal of S, (r,).
        mean_size: standard deviation of the entries of the mean m.
        seed: the same seed gives the same snapshots.

    Returns:
        X, float32 (N, M); and V, float64 (r, M).
    """
    rng = np.random.default_rng(seed)
    rank = len(singular_values)
    scores = rng.standard_normal((n_snapshots, rank))
    scores, _ = np.linalg.qr(np.column_stack([np.ones(n_snapshots), scores]))
    directions, _ = np.linalg.qr(rng.standard_normal((n_weights, rank)))
    mean = mean_size * rng.standard_normal(n_weights)
    return (mean + scores[:, 1:] * singular_values @ directions.T).astype(np.float32), directions.T


def random_walk(n_snapshots: int, n_weights: int, step: float = 0.01, seed: int = 0) -> np.ndarray:
    """Return snapshots float32 (N, M) of a random walk, which late training resembles."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(n_weights)
    rows = []
    for _ in range(n_snapshots):
        weights += step * rng.standard_normal(n_weights)
        rows.append(weights.astype(np.float32))
    return np.array(rows)


def as_weights(vector: np.ndarray) -> dict[str, np.ndarray]:
    """Split a vector into three parameters by name, so that blocks of columns cross the parameters' borders."""
    third = vector.size // 3
    return {
        "conv.weight": vector[:third].reshape(1, third),
        "bn.gamma": vector[third : third + 5],
        "fc": vector[third + 5 :],
    }


def write_series(directory: Path, snapshots: np.ndarray, first_step: int = 1) -> CheckpointSeries:
    """Append the rows as snapshots, the first at ``first_step``, and return the series, opened for reading."""
    series = CheckpointSeries.create(directory, keep=None, prefix="net")
    for step, vector in enumerate(snapshots, first_step):
        series.append(as_weights(vector), step=step, epoch=step)
    return CheckpointSeries.open(directory)
