"""Signals that end a run; a first one waits for the step that it comes in."""

import os
import signal
from collections.abc import Iterator

import pytest

from dimred.errors import StoppedError
from dimred.launch.channel import StopSignals


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of a signal that this process does not ignore, whoever started it."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


def test_the_first_waits_while_it_is_held_and_the_second_does_not(number: int) -> None:
    with StopSignals() as signals:
        with pytest.raises(StoppedError) as stopped, signals.held():
            os.kill(os.getpid(), number)
        assert signals.received == number
        assert stopped.value.exit_status == 128 + number
        with pytest.raises(StoppedError):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_under_a_launcher_the_second_waits_too(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes on what a scheduler has sent to every process; a save is not to end in the middle for that."""
    monkeypatch.setattr("dimred.launch.channel._launcher", object())
    saved = []
    with StopSignals() as signals:
        with pytest.raises(StoppedError) as stopped, signals.held():
            saved = [os.kill(os.getpid(), sent) for sent in (number, signal.SIGTERM)]
        assert len(saved) == 2
        assert stopped.value.exit_status == 128 + number


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
