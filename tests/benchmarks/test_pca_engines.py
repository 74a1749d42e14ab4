"""Compare dimred with MindSpore's boost, scikit-learn and a float64 SVD on 36 snapshots of ResNet-18's size."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.pca_engine import ENGINES, K
from tests.benchmarks.snapshot_files import resnet_18_shapes, write_random_walk

pytestmark = pytest.mark.benchmark


def distance(reference: Path, other: Path) -> float:
    """Return the sine of the largest angle between two subspaces of equal size, block by block: |Q - (Q P') P|_2.

    Q (float64) is orthonormal; P is used as it is, after a QR of its Gram matrix, so that only its row space counts.
    """
    q, p = np.load(reference, mmap_mode="r"), np.load(other, mmap_mode="r")
    cross, gram = np.zeros((K, K)), np.zeros((K, K))
    blocks = [slice(start, start + 262_144) for start in range(0, q.shape[1], 262_144)]
    for block in blocks:
        rows = p[:, block].astype(np.float64)
        cross += np.asarray(q[:, block], np.float64) @ rows.T
        gram += rows @ rows.T
    combination = np.linalg.solve(gram, cross.T).T
    residual = np.zeros((K, K))
    for block in blocks:
        rest = q[:, block] - combination @ p[:, block].astype(np.float64)
        residual += rest @ rest.T
    return float(np.sqrt(np.linalg.eigvalsh(residual)[-1]))


def test_dimred_beside_the_other_engines(tmp_path, capsys):
    write_random_walk(tmp_path / "s", resnet_18_shapes(), 36)
    rows, reference = [], tmp_path / "reference.npy"
    for name in ENGINES:
        out = reference if name.startswith("float64") else tmp_path / "out" / "pca.npy"
        out.parent.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "tests.benchmarks.pca_engine", name, str(tmp_path / "s"), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        _, seconds, cpu, peak = next(line for line in done.stdout.splitlines() if line.startswith("RESULT")).split()
        rows.append(
            (name, float(seconds), float(cpu), int(peak), 0.0 if out == reference else distance(reference, out))
        )
        if out != reference:
            shutil.rmtree(out.parent)
    _, our_seconds, our_cpu, our_peak, _ = next(row for row in rows if row[0] == "dimred pca")
    with capsys.disabled():
        print(
            "\n36 snapshots of 11.2 M weights, 32 directions; time with reading and writing, peak of all resident "
            "memory"
        )
        print(f"{'':30} {'seconds':>8} {'x':>6} {'CPU s':>8} {'x':>6} {'peak MB':>8} {'x':>6}  off the float64 SVD")
        for name, seconds, cpu, peak, far in rows:
            times = f"{seconds:8.1f} {seconds / our_seconds:6.1f} {cpu:8.1f} {cpu / our_cpu:6.1f}"
            print(f"{name:30} {times} {peak / 1e6:8.0f} {peak / our_peak:6.1f}  {far:.1e}")
    assert next(row for row in rows if row[0] == "dimred pca")[4] < 1e-6
