"""The configurations of the runs that are compared in tests, and copies of these runs with other ones."""

import shutil
from pathlib import Path
from typing import Any

import yaml

STAGE_ONE: dict[str, Any] = {
    "epochs": 4,
    "schedule": {"peak": 0.1, "warmup_epochs": 1, "total_epochs": 6},
    "checkpoints": {"every_epochs": 2},
    "snapshots": {"per_epoch": 2},
}
FEW_SNAPSHOTS: dict[str, Any] = {"snapshots": {"per_epoch": 2, "keep": 5}}
STAGE_TWO: dict[str, Any] = {"epochs": "20%", "reestimate_batches": 1}
SEARCH: dict[str, Any] = STAGE_TWO | {"search": {"n_components": 2}, "start": "best"}
AT, PASSES = 4, 1  # 20 % of all passes


def copied(run: Path, to: Path, **changed: object) -> Path:
    shutil.copytree(run, to)
    config = to / "config.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | changed))
    return to
