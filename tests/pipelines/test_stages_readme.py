"""The block of dimred/stages/README.md runs."""

import re
from pathlib import Path

import pytest

from dimred.config import StageOneConfig, load_config
from dimred.runs.run import open_run
from dimred.runs.steps import build_train_step
from dimred.runs.task import build_task
from dimred.stages.stage_1 import StageOne
from tests.helpers.commands import REPOSITORY

PARTS = (Path, StageOneConfig, load_config, open_run, StageOne, build_train_step, build_task)


def test_five_lines_run_a_stage(few_digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").symlink_to(few_digits)
    monkeypatch.chdir(tmp_path)
    page = (REPOSITORY / "dimred" / "stages" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(block.splitlines()) == 5
    exec(block, {part.__name__: part for part in PARTS})
    assert list((tmp_path / "run" / "checkpoint_stage_1").glob("resnet_small-1_*.ckpt"))
