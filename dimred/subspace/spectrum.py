"""The rows of a basis as combinations of snapshots, computed from the snapshots' N x N Gram matrix."""

from pathlib import Path

import numpy as np

from dimred.errors import SeriesError

# Eigenvalues below N times this fraction of the largest come from the rounding of the float64 sums and of the float32
# snapshots, not from directions: for N = 60, sqrt(60 * 2e-15) = 3.5e-7 in singular values, a few units of float32.
_NOISE = 10 * np.finfo(np.float64).eps
# Rounding to float32 changes a row's norm by up to 6e-8, and its angles by less. Rows that deviate by more than this
# are wrong, not only rounded.
TOLERANCE = 1e-6


class TooFewDirectionsError(SeriesError):
    """Some snapshots are repeated or nearly collinear, so they span fewer directions than a basis should have."""

    def __init__(self, rank: int, n_components: int, n_snapshots: int) -> None:
        remedy = f"Ask for n_components = {rank} or fewer, or take more and different snapshots."
        if rank == 0:
            remedy = "Take more and different snapshots."
        super().__init__(
            f"n_components is {n_components}, but the {n_snapshots} snapshots span only {rank} directions above "
            f"rounding (some are repeated or nearly collinear). {remedy}",
            argument="n_components",
        )


def check_enough(n_snapshots: int, n_components: int, kind: str, folder: Path) -> None:
    """Check that there are at least k snapshots, or k + 1 for kind "pca", which subtracts their mean.

    Args:
        n_snapshots: number of snapshots that can be used.
        n_components: k.
        kind: "pca" or "snapshots".
        folder: the snapshots' folder, for the error.

    Raises:
        SeriesError: there are fewer.
    """
    least = n_components + (kind == "pca")
    if n_snapshots < least:
        most = n_snapshots - (kind == "pca")
        fewer = ""
        if most > 0:
            fewer = f", or ask for {most} or fewer: --n-components {most}, in stage 2 --set search.n_components={most}"
        raise SeriesError(
            f"n_components is {n_components}, which needs at least {least} snapshots; {folder} gives {n_snapshots}. "
            f"Save more snapshots in stage 1{fewer}.",
            argument="n_components",
        )


def centre_gram(gram: np.ndarray) -> np.ndarray:
    """Move the origin of a Gram matrix to the snapshots' mean: J G J with J = I - 11'/N.

    Args:
        gram: float64 (N, N), about any point.

    Returns:
        float64 (N, N).
    """
    rows = gram.mean(axis=1, keepdims=True)
    moments = gram - rows - rows.T + gram.mean()
    return (moments + moments.T) / 2


def effective_rank(eigenvalues: np.ndarray) -> int:
    """Count the eigenvalues, (N,), of an N x N Gram matrix that are larger than rounding errors."""
    largest = eigenvalues.max(initial=0.0)
    return int(np.count_nonzero(eigenvalues > len(eigenvalues) * _NOISE * largest))


def principal_directions(gram: np.ndarray, n_components: int) -> np.ndarray:
    """Compute the first principal directions: P = S^-1 U' X with X X' = U S^2 U', X centred.

    Each direction's sign makes one score positive: the score of the earliest snapshot whose score is within 1 % of the
    largest. So a basis is reproducible even if two scores differ only by rounding.

    Args:
        gram: float64 (N, N), about the mean.
        n_components: k.

    Returns:
        The coefficients, float64 (k, N); row i of the basis is ``coefficients[i] @ X``.

    Raises:
        SeriesError: the snapshots span fewer than k directions.
    """
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values[::-1], 0.0)
    vectors = vectors[:, ::-1]
    rank = min(effective_rank(values), len(gram) - 1)
    k = n_components
    if k > rank:
        raise TooFewDirectionsError(rank, n_components=k, n_snapshots=len(gram))
    scores = vectors[:, :k]
    large = np.abs(scores) >= 0.99 * np.abs(scores).max(axis=0)
    signs = np.sign(scores[large.argmax(axis=0), np.arange(k)])
    return np.ascontiguousarray((scores * signs / np.sqrt(values[:k])).T)


def snapshot_directions(gram: np.ndarray, n_components: int) -> np.ndarray:
    """Compute the orthonormal basis of the last k raw snapshots, by Gram-Schmidt in their order.

    With the Gram matrix X X' = L L' of these snapshots the rows are P = L^-1 X: row 0 is the direction of the first
    snapshot, row i the direction that snapshot i adds to the ones before it.

    Args:
        gram: float64 (N, N), X X' of the snapshots about zero.
        n_components: k <= N.

    Returns:
        The coefficients, float64 (k, N); row i of the basis is ``coefficients[i] @ X``, with all N snapshots in X.

    Raises:
        SeriesError: the snapshots are linearly dependent.

    Source: Li et al., Trainable Weight Averaging, ICLR 2023, section 3.
    """
    part = gram[-n_components:, -n_components:]
    rank = effective_rank(np.linalg.eigvalsh(part))
    if rank < n_components:
        raise TooFewDirectionsError(rank, n_components=n_components, n_snapshots=n_components)
    coefficients = np.zeros((n_components, len(gram)))
    coefficients[:, -n_components:] = np.linalg.inv(np.linalg.cholesky(part))
    return coefficients


def spread_along(gram: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Compute the spread of the centred snapshots along each row c_i X of a basis.

    The coordinates along row i are J X X' c_i, with J as in ``centre_gram``, for X about any point. For principal
    directions, their norms are the singular values.

    Args:
        gram: float64 (N, N), X X'.
        coefficients: float64 (k, N), the c_i.

    Returns:
        The norms of the coordinates, float64 (k,).
    """
    scores = gram @ coefficients.T
    return np.linalg.norm(scores - scores.mean(axis=0), axis=0)


def deviation(row_gram: np.ndarray) -> float:
    """Return how far rows are from orthonormal: max |P P' - I|, from P P' of shape (k, k)."""
    return float(np.abs(row_gram - np.eye(len(row_gram))).max())


def repair_transform(row_gram: np.ndarray) -> np.ndarray | None:
    """Return the lower triangular T, float64 (k, k), that makes T P orthonormal, or None if rows are dependent.

    T = L^-1 with P P' = L L'. A triangular T changes a row only by the rows before it. So the first rows, which carry
    the most variance and are the most accurate, change the least.
    """
    try:
        return np.linalg.inv(np.linalg.cholesky(row_gram))
    except np.linalg.LinAlgError:
        return None
