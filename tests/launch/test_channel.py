"""The signals that end a run, and the rank that is named when a job stalls; a real stall is in test_launcher.py."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dimred.errors import StoppedError
from dimred.launch.channel import COMPUTING, READING, Stall, StallDetector
from dimred.launch.signals import StopSignals, postponed


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    """Give the number of a signal that this process does not ignore, whoever started it."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


@pytest.mark.parametrize("fails", [False, True])
def test_a_postponed_signal_comes_at_the_end_of_the_block_however_that_ends(number: int, fails: bool) -> None:
    reached = []

    def start() -> None:
        with postponed():
            os.kill(os.getpid(), number)
            reached.append(True)
            if fails:
                raise OSError("the program was not started")

    with StopSignals(), pytest.raises(StoppedError) as stopped:
        start()
    assert reached == [True]
    assert stopped.value.number == number


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
    """A launcher passes on what a scheduler has sent to every process, and that must not interrupt a save."""
    monkeypatch.setattr("dimred.launch.signals.has_launcher", lambda: True)
    saved = []
    with StopSignals() as signals:
        with pytest.raises(StoppedError) as stopped, signals.held():
            saved = [os.kill(os.getpid(), sent) for sent in (number, signal.SIGTERM)]
        assert len(saved) == 2
        assert stopped.value.exit_status == 128 + number


def test_in_a_thread_signals_are_left_to_the_program(number: int) -> None:
    """As in a notebook's worker: Python lets only the main thread install a handler."""

    def work() -> int | None:
        with StopSignals() as signals, signals.held(), postponed():
            signals.reinstall()
            handlers.append(signal.getsignal(number))
        return signals.received

    handlers: list[object] = []
    with ThreadPoolExecutor(1) as worker:
        assert worker.submit(work).result() is None
    assert handlers == [signal.SIG_DFL]


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def run(self, seconds: int, positions: StallDetector) -> Stall | None:
        """Ask every second, as the launcher does, until there is a stall."""
        for _ in range(seconds):
            self.now += 1
            if (found := positions.stalled()) is not None:
                return found
        return None


R, C = READING, COMPUTING


@pytest.mark.parametrize(
    ("n_ranks", "heard", "rank", "words"),
    [
        (3, [(0, C, 7), (1, R, 7), (2, C, 7)], 1, "rank 1 is reading the batch of step 7, and ranks 0, 2 waited"),
        (2, [(0, "evaluating after", 7), (1, C, 7)], 1, "rank 1 is computing step 7, and rank 0 waited for it"),
        (2, [(0, C, 7), (1, C, 7)], 0, "ranks 0, 1 are computing step 7; all are at the same step"),
        (3, [(0, C, 3), (1, R, 4), (2, R, 4)], 0, "rank 0 is computing step 3, and ranks 1, 2 waited for it"),
        (3, [(0, C, 1), (2, C, 1)], 1, "rank 1 is not at the first step yet, and ranks 0, 2 waited"),
    ],
)
def test_the_rank_that_is_least_far_is_named(
    n_ranks: int, heard: list[tuple[int, str, int]], rank: int, words: str
) -> None:
    clock = Clock()
    positions = StallDetector(range(n_ranks), 60, clock)
    assert positions.stalled() is None  # no rank has begun
    assert clock.run(1000, positions) is None
    for position in heard:
        positions.heard(*position)
    assert clock.run(60, positions) is None
    found = clock.run(1, positions)
    assert found is not None
    assert found.rank == rank
    assert f"no rank has moved for 61 s (--stall-timeout): {words}" in found.words


def test_one_moving_rank_is_enough_and_a_timeout_of_0_is_never_reached() -> None:
    clock = Clock()
    positions, never = StallDetector([0, 1], 60, clock), StallDetector([0, 1], 0, clock)
    for rank in (0, 1):
        positions.heard(rank, READING, 1)
        never.heard(rank, READING, 1)
    for moves in (lambda: positions.heard(1, COMPUTING, 1), positions.alive):
        assert clock.run(50, positions) is None
        moves()
    assert clock.run(60, positions) is None
    assert clock.run(1000, never) is None


def test_a_job_that_was_suspended_has_not_stalled() -> None:
    clock = Clock()
    positions = StallDetector([0], 60, clock)
    positions.heard(0, COMPUTING, 1)
    assert clock.run(40, positions) is None
    clock.now += 7200
    assert clock.run(21, positions) is None
    assert clock.run(1, positions) is not None
    clock.now += 7200
    positions.alive()
    assert clock.run(61, positions) is None
    assert clock.run(1, positions) is not None
