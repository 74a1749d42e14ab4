"""The rule admits a difference only if it is large, sure, from enough seeds, and not bought with more passes."""

import pytest

from tests.studies.admission import Verdict, in_words, judge

AHEAD = [90.4, 88.5, 91.6]
BASE = [90.0, 88.0, 91.0]


@pytest.mark.parametrize(
    ("ours", "theirs", "passes", "their_passes", "expected"),
    [
        (AHEAD, BASE, 45, 45, Verdict.AHEAD),
        (BASE, AHEAD, 45, 45, Verdict.BEHIND),
        (AHEAD, BASE, 46, 45, Verdict.AHEAD),
        (AHEAD, BASE, 46.1, 45, Verdict.LEVEL),  # it took more than one pass more
        (BASE, AHEAD, 45, 46.1, Verdict.LEVEL),
        (BASE, AHEAD, 46.1, 45, Verdict.BEHIND),  # although it took more
        (AHEAD[:2], BASE[:2], 45, 45, Verdict.LEVEL),  # of two seeds
        ([90.2, 88.1, 91.2], BASE, 45, 45, Verdict.LEVEL),  # 0.17 points
        ([91.0, 88.1, 91.4], BASE, 45, 45, Verdict.LEVEL),  # 0.5 points, with a standard error of 0.26
    ],
)
def test_a_difference_counts(
    ours: list[float], theirs: list[float], passes: float, their_passes: float, expected: Verdict
) -> None:
    assert judge(ours, theirs, passes, their_passes) is expected


@pytest.mark.parametrize(("gain", "expected"), [(0.35, Verdict.LEVEL), (0.45, Verdict.AHEAD)])
def test_a_loss_has_to_fall_by_a_fraction(gain: float, expected: Verdict) -> None:
    losses = [-130.0, -134.0, -132.0]  # 0.3 % are 0.396
    assert judge([loss + gain for loss in losses], losses, 45, 45) is expected


def test_what_counts_is_written_in_words() -> None:
    verdicts = {"digits": Verdict.BEHIND, "letters": Verdict.AHEAD, "photos": Verdict.LEVEL, "code": Verdict.AHEAD}
    assert in_words(verdicts) == "ahead: letters, code; behind: digits"
    assert in_words({"photos": Verdict.LEVEL}) == "nothing"
