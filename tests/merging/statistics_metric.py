"""A metric with a hook that gives a candidate statistics of its own."""

from pathlib import Path

import numpy as np

from tests.helpers.checkpoint_files import read_file


def reestimate(candidate):
    tensors = read_file(Path(candidate))
    return {"bn.running_mean": tensors["fc.weight"][:7, 0].astype(np.float64), "bn.running_var": np.ones(7)}


def score(candidate, split):
    """Return 0 where the statistics are those of the weights."""
    tensors = read_file(Path(candidate))
    return float(np.abs(tensors["bn.running_mean"] - tensors["fc.weight"][:7, 0]).sum())
