"""Compare the cost of a basis at ResNet-50's size with mere reading and writing."""

import os
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks.snapshot_files import forget_cached_pages, resnet_50_shapes, write_random_walk
from tests.helpers.processes import run_and_watch

pytestmark = pytest.mark.benchmark


def read_all(paths: tuple[Path, ...]) -> float:
    started = time.perf_counter()
    buffer = bytearray(1 << 22)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - started


def write_all(path: Path, size: int) -> float:
    started = time.perf_counter()
    block = os.urandom(1 << 22)
    with path.open("wb", buffering=0) as file:
        for _ in range(size // len(block)):
            file.write(block)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    path.unlink()
    return seconds


def command(folder: Path, out: Path, *options: str) -> list[str]:
    code = "from dimred.cli.main import app; app()"
    return [sys.executable, "-c", code, "pca", "--ckpt-dir", str(folder), "--out", str(out), *options]


def test_60_snapshots_of_resnet_50_within_a_gigabyte(tmp_path, capsys):
    series = write_random_walk(tmp_path / "s", resnet_50_shapes(), 60)
    assert series.layout is not None
    size = series.layout.size
    forget_cached_pages(series.paths)
    cold, warm = read_all(series.paths), read_all(series.paths)
    writing = write_all(tmp_path / "probe", 4 * 32 * size)
    forget_cached_pages(series.paths)
    started = time.perf_counter()
    most = run_and_watch(command(tmp_path / "s", tmp_path / "pca_mat.npy"))
    seconds = time.perf_counter() - started
    with capsys.disabled():
        print(
            f"\n60 snapshots of {size:,} weights: {4 * 60 * size / 1e9:.1f} GB read, {4 * 32 * size / 1e9:.1f} GB "
            f"written"
        )
        print(
            f"only reading: {cold:.1f} s from the disk, {warm:.1f} s from the page cache; only writing: {writing:.1f} s"
        )
        print(f"dimred pca: {seconds:.1f} s, {seconds / (cold + writing):.2f} of reading once and writing; "
              f"most private memory {most / 1e6:.0f} MB")  # fmt: skip
    assert most <= 3e8
