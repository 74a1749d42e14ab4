"""Both stages under a pseudo-terminal: a live bar there, plain lines in a file, MindSpore's own words in a log."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from tests.pipelines.conftest import STAGE_1, STAGE_2, TwoStages

# One word of MindSpore's own: without GLOG_v=3 its C++ code warns about many things.
LOUD = {"GLOG_v": "2", "TERM": "xterm", "COLUMNS": "120"}


def in_a_terminal(*arguments: object, cwd: Path) -> str:
    """Run a program with standard output and error on a pseudo-terminal; everything that was shown."""
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", *map(str, arguments)], cwd=cwd, env=os.environ | LOUD, stdin=end, stdout=end, stderr=end
    ) as process:
        os.close(end)
        shown = b""
        while True:
            try:
                part = os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        os.close(terminal)
    text = shown.decode()
    assert process.returncode == 0, text
    return text


def test_both_stages_in_a_terminal(digits: Path, tmp_path: Path) -> None:
    board = "--set=tensorboard=true"
    options = ("--set=epochs=1", "--set=snapshots.per_epoch=34", "--set=snapshots.first_epoch=1", board)
    first = in_a_terminal(
        "pipelines.stage_1", digits, "--config", STAGE_1, "--out", tmp_path / "one", *options, cwd=tmp_path
    )
    assert re.search(r"stage 1 .*74/74.*/s.*loss \d\.\d+, accuracy \d+\.\d %", first)
    assert len(re.findall(r"\b\d+/74", first)) > 3  # it moved
    assert re.search(r"epoch: 1 step: 74 loss is \d+\.\d+", first)
    weights = tmp_path / "one" / "checkpoint_stage_1" / "resnet_small-1_74.ckpt"
    second = in_a_terminal(
        "pipelines.stage_2", digits, weights, "--config", STAGE_2, "--out", tmp_path / "two", "--set=epochs=1",
        "--set=start=mean", "--set=reestimate_batches=2", board, cwd=tmp_path,
    )  # fmt: skip
    assert re.search(r"stage 2 .*18/18.*/s.*loss \d\.\d+, accuracy \d+\.\d %", second)
    for shown, folder in ((first, tmp_path / "one"), (second, tmp_path / "two")):
        assert "[WARNING]" not in shown
        assert (folder / "mindspore.log").exists()
        (events,) = (folder / "tensorboard").iterdir()
        assert b"loss" in events.read_bytes()


def test_a_file_gets_plain_lines(two_stages: TwoStages) -> None:
    assert "\x1b" not in two_stages.stage_1_output
    assert "74/74" not in two_stages.stage_1_output
    assert not (two_stages.stage_1 / "tensorboard").exists()
