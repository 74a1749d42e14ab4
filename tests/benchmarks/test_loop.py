"""Compare the loop of a run with a bare one.

Each process keeps to one core, with one thread: on two, instances of the same bare step differ by up to a factor of two
for a whole run. Each program gets several processes, in turns with as many of the bare loop.

bash scripts/test.sh -m benchmark -s tests/benchmarks/test_loop.py -k stage_1
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.benchmark
PROCESSES = 6


@pytest.fixture(scope="module", params=["light", "small"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return a network and weights that a cooldown can begin with."""
    out = tmp_path_factory.mktemp("stage 1")
    seconds_a_step("stage_1", request.param, out)
    return request.param, next((out / "checkpoint_stage_1").glob("*.ckpt"))


@pytest.mark.parametrize("program", ["itself", "model", "stage_1", "cooldown"])
def test_a_loop_of_one_rank_beside_a_bare_one(program: str, trained: tuple[str, Path], tmp_path: Path) -> None:
    """The bare loop beside itself shows how far the figures can be trusted."""
    network, weights = trained
    own, bare = list[list[float]](), list[list[float]]()
    for number in range(PROCESSES):
        pair = [(own, "bare" if program == "itself" else program), (bare, "bare")]
        for found, name in pair if number % 2 else pair[::-1]:
            found.append(seconds_a_step(name, network, tmp_path / f"{number} {len(own)} {name}", weights))
    say(f"{program}, {network}", "a bare loop", own, bare)


def seconds_a_step(program: str, network: str, out: Path, weights: Path | None = None) -> list[float]:
    """Run a program in a process of its own; return the seconds a step of its epochs."""
    command = [sys.executable, "-m", "tests.benchmarks.loop_of_one", program, network, str(out), str(weights or "")]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def say(name: str, other_name: str, own: list[list[float]], other: list[list[float]]) -> None:
    """Print how two programs compare: by the least time of all, and in pairs of instances, ± standard error.

    Args:
        name, other_name: names of the programs.
        own, other: seconds a step of each instance, in pairs that ran one after the other.
    """

    def mean(of_pairs: np.ndarray) -> str:
        return f"{of_pairs.mean():.3f} ± {of_pairs.std(ddof=1) / len(own) ** 0.5:.3f}"

    mine, others = 1e3 * np.min(own, 1), 1e3 * np.min(other, 1)
    print(
        f"\n{name}: {mine.min():.3f} ms a step, {other_name} {others.min():.3f}: {mine.min() / others.min():.3f}; "
        f"in {len(own)} pairs of instances {mean(mine / others)} by the least time, {mean(mine - others)} ms more, and "
        f"{mean(np.mean(own, 1) / np.mean(other, 1))} by the mean"
    )
