"""The tutorial, every block of it, as it stands: a stranger's network and data through both stages."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import REPOSITORY

TUTORIAL = (REPOSITORY / "pipelines" / "TUTORIAL.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_strangers_network_goes_through_both_stages(tmp_path: Path) -> None:
    files = re.findall(r"`(\w+\.(?:py|yaml))`:\n\n```(?:python|yaml)\n(.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["my_network.py", "my_data.py", "stage_1.yaml", "stage_2.yaml"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    commands = "".join(re.findall(r"^```bash\n(.*?)^```", TUTORIAL, re.MULTILINE | re.DOTALL))
    assert commands.count("dimred ") == 6
    done = subprocess.run(
        ["bash", "-e", "-c", commands], cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (float(found) for found in re.findall(r"^\{'Accuracy': (0\.\d+)\}$", done.stdout, re.MULTILINE))
    assert first > 0.5
    assert second > 0.5
    assert (tmp_path / "device0_stage_2" / "report" / "report.html").stat().st_size > 100_000
    assert "| SWA, all snapshots (uniform soup) | 4.0 |" in done.stdout
