"""How far a stage is, where no launcher and no terminal shows it."""

import logging

import pytest

from dimred.launch.channel import StageBar


def test_without_a_terminal_the_log_has_how_far_the_stage_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dimred")
    with StageBar("stage 1", 40, 5) as bar:
        bar.step("loss 0.5")
    assert "stage 1  step 6/40  loss 0.5" in caplog.messages
