"""Orthonormal rows: a basis of the raw snapshots, and the repair of rows that rounding has tilted."""

import numpy as np

from dimred.errors import SeriesError
from dimred.subspace.spectrum import Directions, centre_gram, effective_rank, spread_along

__all__ = ["TOLERANCE", "deviation", "repair_transform", "snapshot_directions"]

# Rounding a row to float32 changes its norm by up to 6e-8 and an angle by less; what is above is arithmetic's.
TOLERANCE = 1e-6


def snapshot_directions(gram: np.ndarray, n_components: int) -> Directions:
    """The orthonormal basis of the last k raw snapshots, by Gram-Schmidt in their order (trainable averaging).

    With the Gram matrix X X' = L L' of these snapshots the rows are P = L^-1 X: row 0 is the first snapshot's
    direction, row i what snapshot i adds to those before it.

    Args:
        gram: float64 (N, N), X X' of the snapshots about zero.
        n_components: k <= N.

    Raises:
        SeriesError: the snapshots are linearly dependent.

    Source: Li et al., Trainable Weight Averaging, ICLR 2023, section 3.
    """
    total_variance = float(np.trace(centre_gram(gram))) / max(len(gram) - 1, 1)
    chosen = gram[-n_components:, -n_components:]
    rank = effective_rank(np.linalg.eigvalsh(chosen))
    if rank < n_components:
        raise SeriesError(
            f"The last {n_components} snapshots span only {rank} directions above rounding (some are repeated or "
            f"nearly collinear). Ask for n_components = {rank} or fewer, or take different snapshots."
        )
    coefficients = np.zeros((n_components, len(gram)))
    coefficients[:, -n_components:] = np.linalg.inv(np.linalg.cholesky(chosen))
    return Directions(coefficients, spread_along(gram, coefficients), total_variance)


def deviation(row_gram: np.ndarray) -> float:
    """How far rows are from orthonormal: max |P P' - I|, from P P' of shape (k, k)."""
    return float(np.abs(row_gram - np.eye(len(row_gram))).max())


def repair_transform(row_gram: np.ndarray) -> np.ndarray | None:
    """The lower triangular T, float64 (k, k), which makes T P orthonormal: T = L^-1 with P P' = L L'.

    Being triangular it leaves row 0's direction alone, and changes a row only by those before it: so the directions
    that carry most variance, which are the accurate ones, stay. None when the rows are linearly dependent.
    """
    try:
        return np.linalg.inv(np.linalg.cholesky(row_gram))
    except np.linalg.LinAlgError:
        return None
