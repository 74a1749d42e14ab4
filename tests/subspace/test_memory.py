"""The peak private memory (RssAnon) of a real process, measured from outside, stays below a limit."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from dimred.subspace.basis import load_basis
from tests.helpers import needs
from tests.helpers.planted import random_walk, write_series
from tests.helpers.processes import run_and_watch

N, M, LIMIT = 34, 1_500_000, 200_000_000


@needs.LINUX
@pytest.mark.slow
def test_the_command_takes_less_memory_than_the_matrix(tmp_path):
    """The matrix alone (204 MB as float32, 408 MB as float64) exceeds the limit."""
    rng = np.random.default_rng(0)
    snapshots = random_walk(2, M)
    walk = [snapshots[0] + 0.01 * number * snapshots[1] + rng.standard_normal(M, np.float32) for number in range(N)]
    write_series(tmp_path / "s", np.array(walk))
    out = tmp_path / "pca_mat.npy"
    arguments = ["pca", "--ckpt-dir", str(tmp_path / "s"), "--out", str(out)]
    most = run_and_watch([str(Path(sys.executable).with_name("dimred")), *arguments])
    print(f"most private memory: {most / 1e6:.0f} MB of {LIMIT / 1e6:.0f} MB; {os.cpu_count()} cores")
    assert most <= LIMIT
    assert load_basis(out).components.shape == (32, M)
