"""Both stages show a live bar on a pseudo-terminal and plain lines in a file; MindSpore's words go to a log."""

import re
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import DIGITS, TwoStages, in_a_terminal


def test_stage_2_in_a_terminal(searched: Path) -> None:
    shown = (searched.parent / "shown of stage 2").read_text()
    assert re.search(r"stage 2 .*18/18.*/s.*loss \d\.\d+, accuracy \d+\.\d %", shown)
    assert len(re.findall(r"\b\d+/18", shown)) > 3  # it moved
    assert re.search(r"epoch: 1 step: \d+ loss is \d+\.\d+", shown)
    assert re.search(r"\{'Accuracy': 0\.\d+\}", shown)
    assert "[WARNING]" not in shown
    assert (searched / "mindspore.log").exists()
    (events,) = (searched / "tensorboard").iterdir()
    assert b"loss" in events.read_bytes()


def test_a_file_gets_plain_lines(two_stages: TwoStages) -> None:
    assert "\x1b" not in two_stages.stage_1_output
    assert "37/37" not in two_stages.stage_1_output
    assert not (two_stages.stage_1 / "tensorboard").exists()


@pytest.mark.slow
def test_the_launcher_shows_its_ranks_bar_and_keeps_the_lines_apart(few_digits: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = ("--set=epochs=2", "--set=data.batch_size=5", "--set=data.eval_split=val")
    command = (
        Path(sys.executable).with_name("dimred"),
        "train",
        "stage-1",
        few_digits,
        "--config",
        DIGITS,
        "--devices",
        "2",
        "--device-target",
        "CPU",
    )
    shown = in_a_terminal(*command, *options, cwd=tmp_path, log=log)
    assert re.search(r"stage 1 .*40/40.*/s.*loss \d\.\d+, accuracy \d+\.\d %", shown)
    assert len(set(re.findall(r"(\d+)/40", shown))) > 3  # it moved; \b fails between a colour's m and a digit
    assert "loss is" not in shown
    lines = log.read_text().splitlines()
    assert [line[:10] for line in lines if line.startswith("epoch")] == ["epoch 1/2 ", "epoch 2/2 "]
    assert [line for line in lines if line.startswith("{'Accuracy': ")] == [lines[-4]]
    assert re.match(r"next: .*\bdimred report ", lines[-1])  # two epochs leave no snapshots for a search
    assert "\x1b" not in log.read_text()
