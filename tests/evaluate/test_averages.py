"""Plain averages of a series, against their formulas."""

from pathlib import Path

import numpy as np
import pytest

from dimred.evaluate.averages import average_snapshots, best_of, greedy_soup, moving_average
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries


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


def test_swa_is_the_mean_over_the_window(made) -> None:
    series, layout, vectors = made
    np.testing.assert_allclose(average_snapshots(series, layout), vectors.mean(0), rtol=1e-6)


def test_lawa_is_the_mean_of_the_latest(made) -> None:
    series, layout, vectors = made
    np.testing.assert_allclose(average_snapshots(series.select(last=2), layout), vectors[2:].mean(0), rtol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9])
def test_the_moving_average_weighs_by_powers_of_its_decay(made, decay: float) -> None:
    series, layout, vectors = made
    shares = [decay**3, (1 - decay) * decay**2, (1 - decay) * decay, 1 - decay]
    expected = sum(share * vector for share, vector in zip(shares, vectors, strict=True))
    np.testing.assert_allclose(moving_average(series, layout, decay), expected, rtol=1e-6, atol=1e-7)


def test_the_greedy_soup_takes_what_does_not_harm(made) -> None:
    series, layout, vectors = made
    target = vectors[[1, 3]].mean(0)
    asked = []

    def score(vector: np.ndarray) -> float:
        asked.append(vector)
        return -float(np.linalg.norm(vector - target))

    soup = greedy_soup(series, layout, score)
    assert set(soup.ingredients) == {1, 3}
    np.testing.assert_allclose(soup.weights, target, rtol=1e-6)
    assert soup.score == pytest.approx(0, abs=1e-6)
    assert len(asked) == 2 * 4 - 1


def test_equal_snapshots_are_tried_from_the_newest_and_all_go_in(made) -> None:
    series, layout, vectors = made
    soup = greedy_soup(series, layout, lambda vector: 1.0)
    assert soup.ingredients == (3, 2, 1, 0)
    np.testing.assert_allclose(soup.weights, vectors.mean(0), rtol=1e-6)


def test_the_best_candidate_is_the_first_of_equal_ones() -> None:
    candidates = [(str(value), np.full(2, value)) for value in (3.0, 1.0, 1.5, 2.0)]
    choice = best_of(candidates, lambda vector: float(int(vector[0])))
    assert (choice.name, choice.weights[0]) == ("1.0", 1.0)
    assert choice.losses == {"3.0": 3.0, "1.0": 1.0, "1.5": 1.0, "2.0": 2.0}
