"""``dimred bench`` prints the row of a real run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.helpers.commands import REPOSITORY, TWO_RANKS, dimred_here
from tests.helpers.tiny_task import TASK


@pytest.mark.slow
def test_two_ranks_give_a_table_of_one_row(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(TASK | {"stage_1": {"stop": "averaged"}, "tensorboard": True}))
    bench = [Path(sys.executable).with_name("dimred"), "bench", ".", "--config", "one.yaml", *TWO_RANKS]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(bench, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        shown = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    head, _, row = shown.splitlines()
    names, cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in (head, row))
    result = dict(zip(names, cells, strict=True))
    assert result["network"] == "tests.helpers.tiny_task:network"  # own samples have no size in pixels
    assert (result["ranks"], result["batch"], result["precision"], result["jit level"]) == ("2", "6", "O0", "default")
    per_second = float(result["images a second"].replace(",", ""))
    assert per_second == pytest.approx(2 * 6 / (float(result["ms a step"]) / 1000), rel=0.1)
    # Rank 0's peak lies between what MindSpore alone takes and that of the largest process below the command; under
    # load another one, such as rank 1 while it compiles, was twice as large.
    assert 200 < int(result["peak memory of rank 0, MB"]) <= 1.05 * 1024 * usage.ru_maxrss / 1e6
    assert [path.name for path in tmp_path.iterdir()] == ["one.yaml"]


@pytest.mark.slow
def test_the_last_step_of_an_epoch_counts_with_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 samples in micro-batches of 6, a step has three, 18 rows, and the last of an epoch has one."""
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(TASK | {"accumulation": 3}))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    head, _, row = dimred_here("bench", ".", "--config", "one.yaml", cwd=tmp_path).stdout.splitlines()
    names, cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in (head, row))
    result = dict(zip(names, cells, strict=True))
    assert result["batch"] == "18"
    per_second = float(result["images a second"].replace(",", ""))
    assert per_second == pytest.approx(12 / (float(result["ms a step"]) / 1000), rel=0.1)
