"""What the loop of a run costs beside a bare one, on one rank; and what the ranks' votes cost in the step of two.

Each process keeps to one core, with one thread: on two, instances of the same bare step differ by up to a factor of
two, for all of a run. So each program gets several processes, in turns with as many of the bare loop.

bash scripts/test.sh -m benchmark -s tests/benchmarks/test_loop.py -k "stage_1 or ranks"
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dimred.launch.job import make_job
from dimred.launch.launcher import launch

pytestmark = pytest.mark.benchmark
PROCESSES = 6


def test_two_ranks_beside_an_all_reduce_that_the_host_waits_for(tmp_path: Path) -> None:
    job = make_job("tests.benchmarks.loop_of_ranks", "stage_1", [], out=tmp_path, devices=2, device_target="CPU")
    assert launch(job) == 0
    for rank in range(2):
        told = json.loads((job.folder(rank) / "figures.json").read_text())
        say(f"rank {rank}, votes in the step", "the wait", told["after"], told["before"], 1e3, "ms a step")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stage 1")
    epochs("stage_1", out)
    return next((out / "checkpoint_stage_1").glob("*.ckpt"))


@pytest.mark.parametrize("program", ["bare", "model", "stage_1", "cooldown"])
def test_a_loop_of_one_rank_beside_a_bare_one(program: str, weights: Path, tmp_path: Path) -> None:
    """``bare`` beside itself shows how far the figures can be trusted."""
    own, bare = [], []
    for number in range(PROCESSES):
        pair = [(own, program), (bare, "bare")]
        for found, name in pair if number % 2 else pair[::-1]:
            found.append(epochs(name, tmp_path / f"{number} {len(own)} {name}", weights))
    say(program, "a bare loop", own, bare, 1, "s an epoch")


def epochs(program: str, out: Path, weights: Path | None = None) -> list[float]:
    """Run a program in a process of its own; return the seconds of its epochs."""
    command = [sys.executable, "-m", "tests.benchmarks.loop_of_one", program, str(out), str(weights or "")]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def say(name: str, other_name: str, own: list[list[float]], other: list[list[float]], factor: float, unit: str) -> None:
    """Print how two programs compare: by the least time of all, and in pairs of instances, ± standard error.

    Args:
        name, other_name: of the programs.
        own, other: times of each instance, in pairs that ran one after the other.
        factor: from seconds to ``unit``.
        unit: of the times.
    """
    least, other_least = np.min(own, 1), np.min(other, 1)
    ratios = [of(own, 1) / of(other, 1) for of in (np.min, np.mean)]
    by_least, by_mean = (f"{each.mean():.3f} ± {each.std(ddof=1) / len(own) ** 0.5:.3f}" for each in ratios)
    print(
        f"\n{name}: {factor * least.min():.3f} {unit}, {other_name} {factor * other_least.min():.3f}, ratio "
        f"{least.min() / other_least.min():.3f}; in {len(own)} pairs of instances {by_least} by the least time, "
        f"{by_mean} by the mean"
    )
