"""The block of dimred/stages/README.md runs."""

import re
from pathlib import Path

import pytest

from tests.helpers.commands import REPOSITORY


@pytest.mark.slow
def test_five_lines_run_a_stage(few_digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").symlink_to(few_digits)
    monkeypatch.chdir(tmp_path)
    page = (REPOSITORY / "dimred" / "stages" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(block.rpartition("\n\n")[2].splitlines()) == 5  # below the imports
    exec(block, {})
    assert list((tmp_path / "run" / "checkpoint_stage_1").glob("resnet_small-1_*.ckpt"))
