"""The memory limit, measured from outside: the most private memory (RssAnon) of a real process."""

import os
import subprocess
import sys
import time

import numpy as np

from dimred.subspace.basis import load_basis
from tests.oracles.planted import random_walk, write_series

N, M, LIMIT = 34, 1_500_000, 200_000_000


def run_and_watch(command: list[str]) -> int:
    """Run the command to its end; the most bytes of private memory it was seen to hold."""
    most = 0
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        status = f"/proc/{process.pid}/status"
        while process.poll() is None:
            with open(status, encoding="ascii") as file:  # noqa: PTH123
                lines = [line for line in file if line.startswith("RssAnon:")]
            most = max([most, *(int(line.split()[1]) * 1024 for line in lines)])
            time.sleep(0.002)
        errors = process.stderr.read().decode()
    assert process.returncode == 0, errors
    return most


def test_the_command_stays_within_max_memory(tmp_path):
    """The matrix alone (204 MB as float32, 408 MB as float64) is more than the limit."""
    rng = np.random.default_rng(0)
    snapshots = random_walk(2, M)
    walk = [snapshots[0] + 0.01 * number * snapshots[1] + rng.standard_normal(M, np.float32) for number in range(N)]
    write_series(tmp_path / "s", np.array(walk))
    out = tmp_path / "pca_mat.npy"
    code = "from dimred.cli.main import app; app()"
    arguments = ["pca", "--ckpt-dir", str(tmp_path / "s"), "--out", str(out), "--max-memory", f"{LIMIT}B"]
    most = run_and_watch([sys.executable, "-c", code, *arguments])
    print(f"most private memory: {most / 1e6:.0f} MB of {LIMIT / 1e6:.0f} MB; {os.cpu_count()} cores")
    assert most <= LIMIT
    assert load_basis(out).components.shape == (32, M)
