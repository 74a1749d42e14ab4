"""Compare dimred's mean of ten bfloat16 checkpoints with reading them once, and with the plain float64 loop.

Each has 25 M weights (0.5 GB in all); ``DIMRED_MERGE_MILLIONS=250`` takes the 5 GB of the README.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.merge_engine import ENGINES
from tests.helpers.checkpoint_files import read_file

pytestmark = pytest.mark.benchmark

N = 10
_LAYER = 5_000_000


def write_checkpoints(folder: Path, millions: int) -> None:
    """Write layers of five million weights, named as trainers do; random bits would give infinities and NaN."""
    rng = np.random.default_rng(0)
    for number in range(1, N + 1):
        path = folder / f"checkpoint-{number}000" / "model.safetensors"
        path.parent.mkdir(parents=True)
        size, header = 2 * _LAYER, {"__metadata__": {"format": "pt"}}
        for layer in range(millions * 1_000_000 // _LAYER):
            offsets = [layer * size, (layer + 1) * size]
            header[f"layer.{layer}.weight"] = {
                "dtype": "BF16",
                "shape": [_LAYER // 1000, 1000],
                "data_offsets": offsets,
            }
        head = json.dumps(header).encode()
        with path.open("wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for _ in range(millions * 1_000_000 // _LAYER):
                values = rng.standard_normal(_LAYER, np.float32)
                file.write((values.view(np.uint32) >> 16).astype(np.uint16).data)
    os.sync()


@pytest.mark.parametrize("cached", [True, False], ids=["from the page cache", "from the disk"])
def test_an_average_costs_little_more_than_reading(tmp_path: Path, capsys, cached: bool) -> None:
    millions = int(os.environ.get("DIMRED_MERGE_MILLIONS", "25"))
    write_checkpoints(tmp_path / "run", millions)
    rows, reference = [], {}
    for name in ENGINES:
        for path in (tmp_path / "run").rglob("*.safetensors"):
            with path.open("rb") as file:
                if cached:
                    while file.read(1 << 24):
                        pass
                else:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        out = tmp_path / "out.safetensors"
        command = [sys.executable, "-m", "tests.benchmarks.merge_engine", name, tmp_path / "run", out]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
        _, seconds, cpu, peak = next(line for line in done.stdout.splitlines() if line.startswith("RESULT")).split()
        rows.append((name, float(seconds), float(cpu), int(peak)))
        if name == "dimred merge, uniform":
            reference = read_file(out)
        if name == "plain float64 loop":  # rounds twice, so that few last bits may differ
            loop = read_file(out)
            assert loop.keys() == reference.keys()
            different = sum(np.count_nonzero(reference[layer].ravel() != values) for layer, values in loop.items())
            assert different < 1e-5 * millions * 1_000_000
        for path in (out, Path(f"{out}.json")):
            path.unlink(missing_ok=True)
    with capsys.disabled():
        where = "page cache" if cached else "disk"
        print(
            f"\n{N} checkpoints of {millions} M weights in bfloat16 from the {where}; own memory is the peak of RssAnon"
        )
        print(f"{'':30} {'seconds':>8} {'x':>6} {'CPU s':>8} {'own MB':>8}")
        for name, seconds, cpu, peak in rows:
            print(f"{name:30} {seconds:8.2f} {seconds / rows[0][1]:6.2f} {cpu:8.2f} {peak / 1e6:8.0f}")
