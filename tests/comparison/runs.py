"""The configurations of the runs that are compared in tests, and copies of these runs with other ones."""

import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.helpers import tiny_task
from tests.helpers.run_files import write_config

TASK: dict[str, Any] = tiny_task.TASK | {"mode": "pynative"}
STAGE_ONE: dict[str, Any] = {
    "epochs": 4,
    "schedule": {"peak": 0.1, "warmup_epochs": 1, "total_epochs": 6},
    "checkpoints": {"every_epochs": 2},
    "snapshots": {"per_epoch": 2},
}
FEW_SNAPSHOTS: dict[str, Any] = {"snapshots": {"per_epoch": 2, "keep": 5}}
STAGE_TWO: dict[str, Any] = {"method": "cooldown", "epochs": "20%"}
SEARCH: dict[str, Any] = {"epochs": 1, "search": {"n_components": 2}}
AT, PASSES = 4, 1  # 20 % of all passes


def copied(run: Path, to: Path, **changed: object) -> Path:
    shutil.copytree(run, to)
    values = yaml.safe_load((to / "config.yaml").read_text())
    write_config(to, yaml.safe_dump(values | {"stage_1": values["stage_1"] | changed}))
    return to
