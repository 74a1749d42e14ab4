"""The rule of every choice: the widest of those that are behind the lowest loss by no more than its standard error."""

import numpy as np
import pytest
from scipy import stats

from dimred.errors import FaultError
from dimred.evaluate.selection import Candidate, Selection, behind

HARD = np.random.default_rng(0).exponential(1.0, 400)  # how hard each sample is, for every candidate


def selection(*candidates: tuple[str, float, np.ndarray]) -> Selection:
    found = Selection()
    for name, width, losses in candidates:
        found.measure(name, width, losses.copy)
    return found


def test_the_standard_error_is_that_of_the_paired_difference() -> None:
    rng = np.random.default_rng(1)
    one, other = HARD + rng.normal(0.01, 0.1, 400), HARD
    found = behind(Candidate("one", 1, one), Candidate("other", 1, other))
    assert found.loss == pytest.approx(np.mean(one - other))
    assert found.standard_error == pytest.approx(stats.sem(one - other))
    assert found.standard_error < stats.sem(one) / 5  # what is hard for both cancels


def test_the_widest_within_one_standard_error_is_chosen() -> None:
    noise = np.tile([0.2, -0.2], 200)  # standard error 0.01
    made = selection(
        ("lowest", 3, HARD), ("wider", 8, HARD + 0.009 + noise), ("too far behind", 20, HARD + 0.011 + noise)
    )
    assert made.lowest().name == "lowest"
    assert made.choose().name == "wider"


def test_a_difference_that_is_small_but_sure_decides() -> None:
    made = selection(("lowest", 1, HARD), ("wider", 40, HARD + 0.001))
    assert made.choose().name == "lowest"


def test_of_equally_wide_ones_the_lower_loss_of_equal_ones_the_first() -> None:
    noise = np.tile([0.2, -0.2], 200)
    made = selection(("a", 2, HARD + 0.005 + noise), ("b", 2, HARD), ("c", 2, HARD.copy()))
    assert made.choose().name == "b"


def test_a_loss_below_zero_is_no_more_exact_than_one_above() -> None:
    """A likelihood's, of which float32 has as many digits."""
    made = selection(("lowest", 1, -100 * np.ones(400)), ("wider", 9, -99.99999 * np.ones(400)))
    assert made.choose().name == "wider"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_never_chosen(bad: float) -> None:
    broken = np.where(np.arange(400) == 7, bad, HARD - 1)
    made = selection(("broken", 50, broken), ("whole", 1, HARD))
    assert made.choose().name == "whole"
    with pytest.raises(FaultError, match="no candidate has a finite loss on 'val'"):
        selection(("broken", 1, broken)).choose()


def test_the_log_says_rule_candidates_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    made = selection(*((f"w{width}", width, HARD + width / 100) for width in range(1, 9)))
    made.tell("start")
    rule, *lines, cost = capsys.readouterr().out.splitlines()
    assert rule == "start: w1, the widest within one standard error of the lowest loss on 'val'"
    assert [line.split(":")[0].strip() for line in lines] == ["w1", "w2", "w3", "w4", "w5"]
    assert "0.0100 +- 0.0000 behind, width 2" in lines[1]
    assert "8 passes over 'val', 8 re-estimations of BatchNorm" in cost
    made = selection(("start", 1, HARD + 1), ("2", 1, HARD))
    made.tell("kept")
    rule, first, *_ = capsys.readouterr().out.splitlines()
    assert rule.startswith("kept: epoch 2, the widest")
    assert first.startswith("  epoch 2: loss")


def test_the_record_has_all_candidates() -> None:
    made = selection(*((f"w{width}", width, HARD + width / 100) for width in range(1, 9)))
    summary = made.summary("start")
    assert [record["name"] for record in summary["start_candidates"]] == [f"w{width}" for width in range(1, 9)]
    assert summary["start_cost"] == {"val_passes": 8, "reestimations": 8}
