"""What a basis costs: at ResNet-50's size beside mere reading and writing, and as N and M grow."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dimred.subspace.fit import fit_basis
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
    rows = []
    for name, options in (("1 GB", ()), ("300 MB", ("--max-memory", "300MB"))):
        forget_cached_pages(series.paths)
        started = time.perf_counter()
        most = run_and_watch(command(tmp_path / "s", tmp_path / f"{len(rows)}.npy", *options))
        rows.append((name, time.perf_counter() - started, most))
    plan = subprocess.run(
        command(tmp_path / "s", tmp_path / "p.npy", "--plan"), capture_output=True, text=True, check=True
    )
    with capsys.disabled():
        print(
            f"\n60 snapshots of {size:,} weights: {4 * 60 * size / 1e9:.1f} GB read, {4 * 32 * size / 1e9:.1f} GB "
            f"written"
        )
        print(
            f"only reading: {cold:.1f} s from the disk, {warm:.1f} s from the page cache; only writing: {writing:.1f} s"
        )
        for name, seconds, most in rows:
            ratio = seconds / (cold + writing)
            print(f"dimred pca --max-memory {name}: {seconds:.1f} s, {ratio:.2f} of reading once and writing; "
                  f"most private memory {most / 1e6:.0f} MB")  # fmt: skip
        print(plan.stdout)
    assert rows[0][2] <= 1e9
    assert rows[1][2] <= 3e8


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and processor seconds of all threads."""
    started, cpu_started = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - started, time.process_time() - cpu_started


def test_cost_grows_linearly_in_m(tmp_path, capsys):
    sizes, counts = (1, 2, 4, 8), (20, 40, 80)
    cells = {}
    for millions in sizes:
        shapes = {f"layer{number}.weight": (1_000, 250) for number in range(4 * millions)}
        series = write_random_walk(tmp_path / "s", shapes, max(counts))
        for count in counts:
            times = []
            for attempt in range(2):
                out = tmp_path / f"{attempt}.npy"
                times.append(timed(partial(fit_basis, series.select(last=count), 16, out=out)))
                out.unlink()
                out.with_suffix(".h5").unlink()
            cells[count, millions] = [min(each) for each in zip(*times, strict=True)]
        shutil.rmtree(tmp_path / "s")
    with capsys.disabled():
        for which, name in enumerate(("Seconds", "Processor seconds")):
            print(f"\n{name}, 16 directions; in brackets per million weights and snapshot, in ms\n")
            print("| N | " + " | ".join(f"M = {millions} M" for millions in sizes) + " |")
            print("|---" * (1 + len(sizes)) + "|")
            for count in counts:
                row = [(cells[count, millions][which], millions * count) for millions in sizes]
                print(f"| {count} | " + " | ".join(f"{t:.2f} ({1e3 * t / work:.1f})" for t, work in row) + " |")
