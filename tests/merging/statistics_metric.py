"""A metric with the hook that gives a candidate statistics of its own."""

import os
from pathlib import Path

import numpy as np

from tests.helpers.checkpoint_files import read_file

WRONG = {
    "weights": lambda tensors: {"fc.weight": tensors["fc.weight"]},
    "shape": lambda tensors: {"bn.running_mean": np.zeros(3)},
    "infinite": lambda tensors: {"bn.running_mean": np.full(7, np.nan)},
    "none": lambda tensors: None,
}


def reestimate(candidate):
    tensors = read_file(Path(candidate))
    wrong = os.environ.get("WRONG")
    if wrong:
        return WRONG[wrong](tensors)
    return {"bn.running_mean": tensors["fc.weight"][:7, 0].astype(np.float64), "bn.running_var": np.ones(7)}


def score(candidate, split):
    """0 where the statistics are those of the weights."""
    tensors = read_file(Path(candidate))
    return float(np.abs(tensors["bn.running_mean"] - tensors["fc.weight"][:7, 0]).sum())
