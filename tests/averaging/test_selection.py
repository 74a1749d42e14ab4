"""What is told and recorded of a choice."""

import numpy as np
import pytest

from dimred.averaging.selection import Measured, Selection

HARD = np.random.default_rng(0).exponential(1.0, 400)  # how hard each sample is, for every candidate


def selection(*candidates: tuple[str, float, np.ndarray]) -> Selection:
    found = Selection()
    for name, effective_size, losses in candidates:
        found.measure(name, effective_size, Measured, losses)
    return found


def test_the_log_says_rule_candidates_and_cost(caplog: pytest.LogCaptureFixture) -> None:
    made = selection(*((f"w{width}", width, HARD + width / 100) for width in range(1, 9)))
    made.tell("start")
    rule, *lines, cost = caplog.messages
    assert rule == "start: w1, the largest average within one standard error of the lowest loss on 'val'"
    assert [line.split(":")[0].strip() for line in lines] == ["w1", "w2", "w3", "w4", "w5"]
    assert "0.0100 +- 0.0000 behind, effective size 2" in lines[1]
    assert "8 passes over 'val', 8 re-estimations of BatchNorm" in cost
    made = selection(("start", 1, HARD + 1), ("2", 1, HARD))
    caplog.clear()
    made.tell("kept")
    rule, first, *_ = caplog.messages
    assert rule.startswith("kept: epoch 2, the largest average")
    assert first.startswith("  epoch 2: loss")


def test_the_record_has_all_candidates() -> None:
    made = selection(*((f"w{width}", width, HARD + width / 100) for width in range(1, 9)))
    summary = made.summary("start")
    assert [record["name"] for record in summary["start_candidates"]] == [f"w{width}" for width in range(1, 9)]
    assert summary["start_cost"] == {"val_passes": 8, "reestimations": 8}
