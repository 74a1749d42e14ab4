"""The plane of the first two principal directions: where the weights were, and how far off the plane."""

from typing import NamedTuple

import numpy as np

from dimred.subspace.basis import SubspaceBasis


class PlanePoints(NamedTuple):
    """CheckpointSelection of weight space seen from the plane through the snapshots' mean.

    Attributes:
        along: coordinates in the plane, (n, 2) float64.
        off: distance from the plane, (n,) float64.
    """

    along: np.ndarray
    off: np.ndarray


class Surface(NamedTuple):
    """The loss on a grid of the plane.

    Attributes:
        first, second: coordinates of the grid's columns and rows, (n,) float64.
        loss: (n, n) float64; row i belongs to ``second[i]``, column j to ``first[j]``.
        n_images: on which it was evaluated.
    """

    first: np.ndarray
    second: np.ndarray
    loss: np.ndarray
    n_images: int


def plane_point(basis: SubspaceBasis, mean: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Coordinates (2,) of ``weights`` (M,) in the plane mean + span(P[:2]), and the distance from that plane.

    With c = P[:2] (w - mean) the distance is |w - mean - P[:2]' c|.
    """
    away = np.asarray(weights, np.float64) - mean
    plane = np.asarray(basis.components[:2], np.float64)
    along = plane @ away
    return along, float(np.linalg.norm(away - along @ plane))


def grid_around(points: np.ndarray, n: int, margin: float = 0.15) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of a grid of n x n that holds all ``points`` (m, 2), with a margin on each side."""
    low, high = points.min(0), points.max(0)
    wider = margin * np.maximum(high - low, 1e-9 + 0.2 * np.max(high - low))
    first, second = (np.linspace(low[axis] - wider[axis], high[axis] + wider[axis], n) for axis in (0, 1))
    return first, second
