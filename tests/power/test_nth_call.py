"""Whichever call on the disk fails, a command ends with one line that names the file, and can be called again.

By default each call of ``dimred pca`` with one error; with ``-m slow`` the other commands and both stages.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import REPOSITORY, run
from tests.helpers.disks import disk_library

ALL = ("EIO", "ENOSPC", "EDQUOT", "EIO+")


@pytest.mark.parametrize(
    ("name", "failures"),
    [("pca", ("EIO",))]
    + [
        pytest.param(name, ALL, marks=pytest.mark.slow)
        for name in ("search", "cooldown", "merge_by_metric", "report", "convert", "merge", "stage_1", "pca")
    ],
)
def test_each_call_that_fails_is_survived_or_named(name: str, failures: tuple[str, ...], tmp_path: Path) -> None:
    if name == "convert":
        pytest.importorskip("torch")
    library = disk_library(tmp_path)
    command = (sys.executable, "-m", "tests.power.nth_call", name, tmp_path, *failures)
    environment = {"LD_PRELOAD": str(library)}
    done = run(*command, cwd=REPOSITORY, environment=environment, timeout_seconds=3600, status=0)
    summary = json.loads(done.stdout.splitlines()[-1])
    print(name, summary)
    assert summary["calls"] > 15
    assert summary["faults"] == 0, done.stdout
