"""Checkpoints to search in, and where their metrics are."""

from pathlib import Path

import numpy as np

from tests.helpers.checkpoint_files import write_file

METRICS = Path(__file__).with_name("metrics.py")
N = 10


def plant(folder: Path, seed: int = 0) -> np.ndarray:
    """Checkpoints around an optimum, which no average of some of them comes close to; the optimum."""
    rng = np.random.default_rng(seed)
    optimum = rng.standard_normal(500)
    directions, _ = np.linalg.qr(rng.standard_normal((500, 4)))
    for number in range(N):
        point = rng.standard_normal(4) * [3, 2, 1.5, 1] + [2.0, -2.0, 1.5, 1.0]
        write_file(folder / f"n-{number}.safetensors", {"w": (optimum + directions @ point).astype(np.float32)})
    return optimum


def score_zero(candidate: str) -> float:
    return 0.0
