"""A finished stage 1 of two epochs, and the configuration of the stage 2 runs that continue it."""

from pathlib import Path
from typing import Any

import pytest

from dimred.config import StageOneConfig, StageTwoConfig
from tests.helpers.tiny_run import stage_1_run
from tests.helpers.tiny_task import TASK

STAGE_1: dict[str, Any] = {
    "epochs": 2,
    "schedule": {"name": "constant", "peak": 0.1, "warmup_epochs": 0},
    "checkpoints": {"every_epochs": 1},
}
COOLDOWN: dict[str, Any] = {"method": "cooldown", "epochs": 1}


def config_with(**options: Any) -> StageTwoConfig:
    return StageTwoConfig.model_validate(TASK | COOLDOWN | options)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a stage 1 of two epochs; return the folder of its checkpoints."""
    out = tmp_path_factory.mktemp("finished") / "one"
    stage_1_run(StageOneConfig.model_validate(TASK | STAGE_1))(out, False)
    return out / "checkpoint_stage_1"
