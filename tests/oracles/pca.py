"""Plain NumPy twins of the PCA engine, in float64 and with the whole matrix in memory."""

import numpy as np


def principal_components(snapshots: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean (M,), first k principal directions (k, M) and all singular values, by SVD of the centred snapshots.

    Jolliffe, Principal Component Analysis (2nd ed.), equation 3.5.1: X = U L A'.
    """
    mean = snapshots.astype(np.float64).mean(axis=0)
    _, values, directions = np.linalg.svd(snapshots.astype(np.float64) - mean, full_matrices=False)
    return mean, directions[:k], values


def gram_schmidt(rows: np.ndarray) -> np.ndarray:
    """Make rows orthonormal by modified Gram-Schmidt, applied twice; the first row keeps its direction.

    Golub & Van Loan, Matrix Computations (4th ed.), algorithm 5.2.6.
    """
    basis = rows.astype(np.float64)
    for _ in range(2):
        for i in range(len(basis)):
            for j in range(i):
                basis[i] -= (basis[j] @ basis[i]) * basis[j]
            basis[i] /= np.linalg.norm(basis[i])
    return basis


def subspace_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return the sine of the largest angle between the row spaces of two orthonormal bases of equal size.

    With the rows P and Q of the bases, (k, M) each, it is |Q - (Q P') P|_2, which is accurate for small angles (Golub &
    Van Loan, section 2.5.3).
    """
    first, second = first.astype(np.float64), second.astype(np.float64)
    return float(np.linalg.norm(second - (second @ first.T) @ first, ord=2))
