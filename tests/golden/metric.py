"""The metric of the merges in the set."""

import numpy as np


def size(tensors: dict[str, np.ndarray]) -> float:
    """Return the sum of the squares of all weights."""
    return float(sum(np.square(tensor, dtype=np.float64).sum() for tensor in tensors.values()))
