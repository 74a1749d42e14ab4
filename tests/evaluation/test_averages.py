"""Averages of a series equal their formulas, and the best is chosen."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dimred.averaging.choice import Choice
from dimred.averaging.windows import Window
from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import CheckpointError
from dimred.evaluation.averages import SnapshotAverages, choose_average
from dimred.run_files.metric import Measurement
from tests.oracles import merge as oracle

N, M = 24, 200
LAYOUT = WeightLayout.from_weights({"w": np.zeros((M, 1), np.float32)})


def write(folder: Path, snapshots: Iterable[dict[str, Any]], keep: int = N) -> CheckpointSeries:
    series = CheckpointSeries.create(folder, keep=keep)
    for number, weights in enumerate(snapshots, start=1):
        series.append(weights, step=10 * number, epoch=number)
    return series


@pytest.fixture
def made(tmp_path: Path) -> tuple[CheckpointSeries, WeightLayout, np.ndarray]:
    """Write six snapshots, of which the series keeps four, and return it with their vectors."""
    rng = np.random.default_rng(0)
    drawn = [
        {"a": rng.normal(size=(2, 3)).astype(np.float32), "b": rng.normal(size=4).astype(np.float32)} for _ in range(6)
    ]
    series = write(tmp_path, drawn, keep=4)
    vectors = np.array([np.concatenate([weights["a"].ravel(), weights["b"]]) for weights in drawn[2:]])
    return series, WeightLayout.from_weights(drawn[0]), vectors


@pytest.mark.parametrize(
    ("window", "coefficients"),
    [
        (Window(0, 4), [1, 1, 1, 1]),  # SWA
        (Window(2, 4), [0, 0, 1, 1]),  # LAWA
        (Window(0, 3), [1, 1, 1, 0]),
        (Window(1, 4, "linear"), [0, 1, 2, 3]),
        (Window(1, 4, "0.5,0.125,0.375"), [0, 0.5, 0.125, 0.375]),
        (Window(0, 4, "exponential=0.3"), [0.027, 0.7 * 0.09, 0.7 * 0.3, 0.7]),
    ],
)
def test_a_window_is_the_plain_mean(made, window: Window, coefficients: list[float]) -> None:
    series, layout, vectors = made
    averages, choice = SnapshotAverages(series, layout), Choice()
    expected = oracle.weighted_mean(list(vectors), coefficients)
    np.testing.assert_allclose(averages.of(window), expected, rtol=1e-6, atol=1e-7)
    shares = np.array(coefficients) / sum(coefficients)
    candidate = averages.measure(window, choice, Measurement)
    np.testing.assert_array_equal(candidate.losses, averages.of(window))
    np.testing.assert_array_equal(averages.of(candidate.source), averages.of(window))
    assert candidate.effective_size == pytest.approx(1 / (shares**2).sum())
    assert candidate.name.endswith(f"steps {10 * window.first + 30} to {10 * window.end + 20}")


def test_snapshots_of_another_network_are_refused(made) -> None:
    layout = WeightLayout.from_weights({"a": np.zeros((3, 2)), "b": np.zeros(4)})
    with pytest.raises(CheckpointError, match=r"not fit the network .*: its parameter 'a' has shape \(2, 3\) instead"):
        SnapshotAverages(made[0], layout)


def repeated(folder: Path, *values: float) -> CheckpointSeries:
    """Write snapshots whose weights all have one value."""
    return write(folder, ({"w": np.full((M, 1), value, np.float32)} for value in values))


def distances(vector: np.ndarray) -> Measurement:
    """Measure how far each weight is from 1, with a network that turns NaN into 0, as ReLU on a CPU does."""
    return Measurement(np.nan_to_num(vector.astype(np.float64) - 1.0) ** 2)


def test_weights_that_are_not_finite_are_not_chosen_however_low_their_loss(tmp_path: Path) -> None:
    series = repeated(tmp_path, *[3] * 9)
    write_checkpoint(series.paths[0], {"w": np.full((M, 1), np.nan, np.float32)})
    averages = SnapshotAverages(series, LAYOUT)
    _, weights = choose_average(averages, distances, np.full(M, np.inf, np.float32), Choice())
    assert (weights == 3).all()


def snapshots(folder: Path, first_good: int, last_good: int) -> CheckpointSeries:
    """Write noisy snapshots around the optimum 0 from one number to another; the others are far away."""
    rng = np.random.default_rng(0)
    distances = [max(first_good - number, 0) + max(number - last_good, 0) for number in range(N)]
    return write(folder, ({"w": (rng.normal(size=(M, 1)) + away).astype(np.float32)} for away in distances))


def squares(vector: np.ndarray) -> Measurement:
    """Take each weight for a sample."""
    return Measurement(vector.astype(np.float64) ** 2)


@pytest.mark.parametrize(("first_good", "length"), [(0, 24), (8, 13), (16, 8)])
def test_it_finds_the_average_that_holds_the_good_snapshots(first_good: int, length: int, tmp_path: Path) -> None:
    averages, choice = SnapshotAverages(snapshots(tmp_path, first_good, N), LAYOUT), Choice()
    last = averages.of(Window(N - 1, N))
    candidate, weights = choose_average(averages, squares, last, choice)
    assert candidate.effective_size == length
    assert candidate.name.endswith("to 240")
    np.testing.assert_array_equal(squares(weights).losses, candidate.losses)
    assert [one.effective_size for one in choice.candidates] == [1, 8, 13, 21, 24]


def test_the_last_weights_are_kept_where_no_average_is_better(tmp_path: Path) -> None:
    averages = SnapshotAverages(snapshots(tmp_path, N + 5, N + 5), LAYOUT)
    last = np.zeros(M, np.float32)
    candidate, weights = choose_average(averages, squares, last, Choice())
    assert (candidate.name, weights is last) == ("last", True)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_snapshots_have_one_average_at_most(count: int, tmp_path: Path) -> None:
    series, choice = snapshots(tmp_path, 0, N).select(last=count) if count else None, Choice()
    averages = SnapshotAverages(series, LAYOUT)
    choose_average(averages, squares, np.full(M, 9, np.float32), choice)
    average = ["uniform of 2 snapshots, steps 230 to 240"] if count == 2 else []
    assert [one.name for one in choice.candidates] == ["last", *average]
