"""Averages of a series, against their formulas."""

from pathlib import Path

import numpy as np
import pytest

from dimred.averaging.choice import Measured, Selection
from dimred.averaging.windows import Window
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import CheckpointError
from dimred.evaluation.averages import SnapshotAverages
from tests.oracles import merge as oracle


@pytest.fixture
def made(tmp_path: Path) -> tuple[CheckpointSeries, WeightLayout, np.ndarray]:
    """A window of 4 of 6 snapshots, and the vectors in it."""
    rng = np.random.default_rng(0)
    drawn = [
        {"a": rng.normal(size=(2, 3)).astype(np.float32), "b": rng.normal(size=4).astype(np.float32)} for _ in range(6)
    ]
    series = CheckpointSeries(tmp_path, keep=4)
    for step, weights in enumerate(drawn, start=1):
        series.append(weights, step=step, epoch=step)
    vectors = np.array([np.concatenate([weights["a"].ravel(), weights["b"]]) for weights in drawn[2:]])
    return CheckpointSeries.open(tmp_path), WeightLayout.from_weights(drawn[0]), vectors


@pytest.mark.parametrize(
    ("window", "coefficients"),
    [
        (Window(0, 4), [1, 1, 1, 1]),  # SWA
        (Window(2, 4), [0, 0, 1, 1]),  # LAWA
        (Window(0, 3), [1, 1, 1, 0]),
        (Window(1, 4, "linear"), [0, 1, 2, 3]),
        (Window(1, 4, "0.5,-0.25,0.75"), [0, 0.5, -0.25, 0.75]),
        (Window(0, 4, "exponential=0.3"), [0.027, 0.7 * 0.09, 0.7 * 0.3, 0.7]),
    ],
)
def test_a_window_is_the_plain_mean(made, window: Window, coefficients: list[float]) -> None:
    series, layout, vectors = made
    averages, selection = SnapshotAverages(series, layout), Selection()
    expected = oracle.weighted_mean(list(vectors), coefficients)
    np.testing.assert_allclose(averages.of(window), expected, rtol=1e-6, atol=1e-7)
    shares = np.array(coefficients) / sum(coefficients)
    candidate = averages.measure(window, selection, Measured)
    np.testing.assert_array_equal(candidate.losses, averages.of(window))
    np.testing.assert_array_equal(averages.of_candidate(candidate.name), averages.of(window))
    assert candidate.effective_size == pytest.approx(1 / (shares**2).sum())
    assert candidate.name.endswith(f"steps {window.first + 3} to {window.end + 2}")


def test_snapshots_of_another_network_are_refused(made) -> None:
    layout = WeightLayout.from_weights({"a": np.zeros((3, 2)), "b": np.zeros(4)})
    with pytest.raises(CheckpointError, match=r"not fit the network .*: its parameter 'a' has shape \(2, 3\) instead"):
        SnapshotAverages(made[0], layout)


def test_without_snapshots_there_is_no_window(made) -> None:
    assert SnapshotAverages(None, made[1]).steps == []
