"""From the N x N Gram matrix of the snapshots to the principal directions, in snapshot space."""

from typing import NamedTuple

import numpy as np

from dimred.errors import ConfigError, SeriesError

__all__ = ["Directions", "centre_gram", "effective_rank", "principal_directions", "spread_along"]

# Eigenvalues below this share of the largest, times N, are the rounding of the float64 sums and of the float32
# snapshots rather than directions: sqrt(60 * 2e-15) = 3.5e-7 in singular values, a few units of float32 rounding.
_NOISE = 10 * np.finfo(np.float64).eps


class Directions(NamedTuple):
    """Rows of a basis as combinations of snapshots.

    Attributes:
        coefficients: float64 (k, N); row i of the basis is ``coefficients[i] @ snapshots``.
        singular_values: float64 (k,), the norm of the centred snapshots' coordinates along each row.
        total_variance: the variance of the snapshots about their mean, summed over all weights.
    """

    coefficients: np.ndarray
    singular_values: np.ndarray
    total_variance: float


def centre_gram(gram: np.ndarray) -> np.ndarray:
    """The Gram matrix about the snapshots' mean, from one about any other point: J G J with J = I - 11'/N."""
    rows = gram.mean(axis=1, keepdims=True)
    centred = gram - rows - rows.T + gram.mean()
    return (centred + centred.T) / 2


def effective_rank(eigenvalues: np.ndarray) -> int:
    """How many eigenvalues of an N x N Gram matrix stand above rounding."""
    largest = eigenvalues.max(initial=0.0)
    return int(np.count_nonzero(eigenvalues > len(eigenvalues) * _NOISE * largest)) if largest > 0 else 0


def principal_directions(gram: np.ndarray, n_components: int | float) -> Directions:
    """The first principal directions: P = S^-1 U' X with X X' = U S^2 U', X centred.

    Each direction's sign makes the score of the earliest snapshot that is within 1 % of the largest score positive:
    so that a basis is reproducible, also where two scores are equal but for rounding.

    Args:
        gram: float64 (N, N), about the mean.
        n_components: k; or a share of variance between 0 and 1, of which k is the least number that explains it.

    Raises:
        SeriesError: the snapshots span fewer than k directions.
    """
    values, vectors = np.linalg.eigh(gram)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    rank = min(effective_rank(values), len(gram) - 1)
    if rank == 0:
        raise SeriesError(
            f"The {len(gram)} snapshots are all equal: they span no direction. Check where they came from."
        )
    k = _components_for_share(values, n_components) if isinstance(n_components, float) else n_components
    if k > rank:
        raise SeriesError(
            f"n_components is {k}, but the {len(gram)} snapshots span only {rank} directions above rounding (some are "
            f"repeated or nearly collinear). Ask for n_components = {rank} or fewer, or take more and different "
            "snapshots."
        )
    scores = vectors[:, :k]
    large = np.abs(scores) >= 0.99 * np.abs(scores).max(axis=0)
    signs = np.sign(scores[large.argmax(axis=0), np.arange(k)])
    singular_values = np.sqrt(values[:k])
    coefficients = (scores * signs / singular_values).T
    return Directions(np.ascontiguousarray(coefficients), singular_values, float(np.trace(gram)) / (len(gram) - 1))


def _components_for_share(values: np.ndarray, share: float) -> int:
    if not 0 < share < 1:
        raise ConfigError(f"n_components is {share}; give a whole number, or a share of variance between 0 and 1.")
    explained = np.cumsum(values) / values.sum()
    return int(np.searchsorted(explained, share)) + 1


def spread_along(gram: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """The norms, float64 (k,), of the centred snapshots' coordinates along the rows ``coefficients @ snapshots``.

    The coordinates along row i are J X X' c_i, for X about any point.

    Args:
        gram: float64 (N, N), X X'.
        coefficients: float64 (k, N), the rows c_i.
    """
    scores = gram @ coefficients.T
    return np.linalg.norm(scores - scores.mean(axis=0), axis=0)
