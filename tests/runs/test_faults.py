"""A training that diverges is noticed; one that only stumbles is not."""

import errno
import math
import os
import socket
import subprocess
import sys

import pytest

from dimred.errors import DataError, DivergedError, FaultError
from dimred.launch.channel import LAUNCHER
from dimred.runs.faults import DivergenceDetector, translate_errors


def check(watch: DivergenceDetector, losses: list[float]) -> None:
    for step, loss in enumerate(losses, start=1):
        watch.check(loss, step)


def test_an_ordinary_training_with_a_few_overflows_goes_on() -> None:
    check(DivergenceDetector(), [2.3, math.inf, math.nan, *[2.0] * 17, *[math.inf] * 5, *[900.0] * 4, *[1.0] * 11])
    check(DivergenceDetector(), [300.0] * 10)


def test_a_trial_names_no_state_and_no_resume() -> None:
    with pytest.raises(FaultError) as fault, translate_errors(None, is_kept=False):
        raise OSError(errno.ENOSPC, "full", "a/file")
    assert str(fault.value).endswith(
        "; nothing of this trial is kept: once the cause is gone, run the same command again"
    )


@pytest.mark.parametrize(
    ("first_loss", "losses", "said"),
    [
        (None, [2.3] * 10 + [math.nan] * 5 + [math.inf] * 5, "none of the 10 losses up to step 20"),
        (None, [2.3] * 10 + [300.0] * 9 + [400.0], r"exploded: of .* up to step 20, .* between 300 and 400;"),
        (2.3, [300.0] * 10, "exploded"),  # in comparison with the first loss of the whole run
        *((2.3, [400.0] * place + [math.nan] + [400.0] * (9 - place), "exploded") for place in (0, 4, 9)),
    ],
)
def test_ten_bad_losses_end_it(first_loss: float | None, losses: list[float], said: str) -> None:
    with pytest.raises(FaultError, match=said):
        check(DivergenceDetector(first_loss), losses)


def test_a_run_that_is_resumed_before_it_was_judged_keeps_its_first_loss() -> None:
    watch = DivergenceDetector()
    check(watch, [math.nan, 2.3, 300.0])
    with pytest.raises(FaultError, match=r"exploded.*; the first loss of the run was 2\.3$"):
        check(DivergenceDetector(watch.first_loss), [300.0] * 10)


def test_a_loss_that_falls_below_zero_has_not_exploded() -> None:
    check(DivergenceDetector(), [5.0] + [-600.0] * 29)


def test_going_on_is_not_the_advice_after_an_explosion() -> None:
    with (
        pytest.raises(
            FaultError, match=r"new folder with a lower schedule\.peak \(in stage 2, cooldown\.factor\)"
        ) as found,
        translate_errors(None),
    ):
        check(DivergenceDetector(first_loss=2.3), [300.0] * 10)
    assert "--resume" not in str(found.value)


def test_only_a_training_that_diverges_has_the_exit_status_of_one() -> None:
    """``dimred compare`` leaves out a rate with which training diverges, but not one whose disk or data failed."""
    for error in (
        OSError(errno.ENOSPC, "full", "a/file"),
        DataError("an image"),
        FaultError("a disk"),
        RuntimeError("out of memory"),
    ):
        with pytest.raises(FaultError) as fault, translate_errors(None):
            raise error
        assert fault.value.exit_status == 3
    with pytest.raises(DivergedError) as diverged, translate_errors(None):
        raise DivergedError("no loss was finite")
    assert diverged.value.exit_status == 4


def test_a_rank_without_states_does_not_say_that_none_was_saved() -> None:
    with (
        pytest.raises(FaultError, match=r"^gone; rank 0 has the last good state, if any: .*--resume"),
        translate_errors(None),
    ):
        raise DataError("gone")


def test_too_little_memory_is_one_line_that_says_what_to_lower() -> None:
    told = "Memory isn't enough and alloc failed, kernel name: Conv2D-op0, alloc size: 205520896B."
    remedy = r"more memory.*205520896B.*lower data\.batch_size.*accumulation and data\.multiple_of"
    with pytest.raises(FaultError, match=remedy) as found, translate_errors(None):
        raise RuntimeError(f"\n-----\n- Memory not enough:\n-----\n{told}\n\n-----\n- C++ Call Stack\n")
    assert "\n" not in str(found.value)
    with pytest.raises(RuntimeError, match="another"), translate_errors(None):
        raise RuntimeError("another")


def test_a_rank_does_not_name_the_signal_that_its_launcher_sends() -> None:
    """After ctrl-C the launcher sends SIGTERM, and has said what it got."""
    code = (
        "from dimred.errors import StoppedError\n"
        "from dimred.runs.faults import translate_errors\n"
        "with translate_errors(None):\n"
        "    raise StoppedError(15)\n"
    )
    launcher, rank = socket.socketpair()
    for environment, said in ({LAUNCHER: str(rank.fileno())}, "stopped; "), ({}, "stopped by SIGTERM; "):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | environment,
            pass_fds=[rank.fileno()],
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"StoppedError: {said}rank 0 has the last good state, if any; run the same command" in done.stderr
    launcher.close()
    rank.close()
