"""Who is named when a job stands still; a real one is in test_launcher.py."""

import pytest

from dimred.launch.channel import COMPUTING, READING
from dimred.launch.stall import StallDetector


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("n_ranks", "heard", "rank", "words"),
    [
        (
            3,
            [(0, COMPUTING, 7), (1, READING, 7), (2, COMPUTING, 7)],
            1,
            "rank 1 is reading the batch of step 7, and ranks 0, 2 waited",
        ),
        (2, [(0, READING, 8), (1, COMPUTING, 7)], 1, "rank 1 is computing step 7, and rank 0 waited for it"),
        (2, [(0, "evaluating after", 7), (1, COMPUTING, 7)], 1, "rank 1 is computing step 7"),
        (2, [(0, COMPUTING, 7), (1, COMPUTING, 7)], 0, "ranks 0, 1 are computing step 7; all are equally far"),
        (3, [(0, READING, 3), (1, READING, 4), (2, READING, 4)], 0, "rank 0 is reading the batch of step 3"),
        (
            3,
            [(0, COMPUTING, 1), (2, COMPUTING, 1)],
            1,
            "rank 1 is not at the first step yet, and ranks 0, 2 waited for it",
        ),
        (3, [(2, READING, 1)], 0, "ranks 0, 1 are not at the first step yet, and rank 2 waited for it"),
    ],
)
def test_the_rank_that_is_least_far_is_named(
    n_ranks: int, heard: list[tuple[int, str, int]], rank: int, words: str
) -> None:
    clock = Clock()
    positions = StallDetector(range(n_ranks), 60, clock)
    assert positions.stalled() is None  # nobody has begun
    clock.now = 1000.0
    for position in heard:
        positions.heard(*position)
    clock.now += 60
    assert positions.stalled() is None
    clock.now += 1
    found = positions.stalled()
    assert found is not None
    assert found.rank == rank
    assert f"no rank has moved for 61 s (--stall-timeout): {words}" in found.words


def test_one_that_moves_is_enough_and_0_is_never() -> None:
    clock = Clock()
    positions, never = StallDetector([0, 1], 60, clock), StallDetector([0, 1], 0, clock)
    for rank in (0, 1):
        positions.heard(rank, READING, 1)
        never.heard(rank, READING, 1)
    clock.now = 50
    positions.heard(1, COMPUTING, 1)
    clock.now = 100
    assert positions.stalled() is None
    positions.alive()
    clock.now = 160
    assert positions.stalled() is None
    clock.now = 1e9
    assert never.stalled() is None
