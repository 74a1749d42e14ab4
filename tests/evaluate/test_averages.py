"""Plain averages of a series, against their formulas."""

from pathlib import Path

import numpy as np
import pytest

from dimred.evaluate.averages import average_snapshots, best_of, combine_snapshots, running_sums
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries
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
    np.testing.assert_allclose(
        average_snapshots(series, layout, f"exponential={decay}"), expected, rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("last", [None, 2])
def test_running_sums_give_every_window_and_profile_for_one_reading(made, last: int | None) -> None:
    series, layout, vectors = made
    window = vectors if last is None else vectors[: last + 1]
    lengths = []
    for sums in running_sums(series, layout, decays=[0.3, 0.9], last=last):
        lengths.append(sums.n)
        part = list(window[-sums.n :])
        expected = oracle.weighted_mean(part, np.arange(1.0, sums.n + 1).tolist())
        np.testing.assert_allclose(sums.linear(), expected, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(sums.uniform(), np.mean(part, axis=0), rtol=1e-6, atol=1e-7)
        for decay in (0.3, 0.9):
            average = part[0].astype(np.float64)
            for vector in part[1:]:
                average = decay * average + (1 - decay) * vector
            np.testing.assert_allclose(sums.exponential(decay), average, rtol=1e-6, atol=1e-7)
    assert lengths == list(range(1, len(window) + 1))


def test_any_combination(made) -> None:
    series, layout, vectors = made
    coefficients = [0.5, 0, -0.25, 1]
    expected = oracle.weighted_mean(list(vectors), coefficients)
    np.testing.assert_allclose(combine_snapshots(series, layout, coefficients), expected, rtol=1e-6)


def test_the_best_candidate_is_the_first_of_equal_ones() -> None:
    candidates = [(str(value), np.full(2, value)) for value in (3.0, 1.0, 1.5, 2.0)]
    choice = best_of(candidates, lambda vector: float(int(vector[0])))
    assert (choice.name, choice.weights[0]) == ("1.0", 1.0)
    assert choice.losses == {"3.0": 3.0, "1.0": 1.0, "1.5": 1.0, "2.0": 2.0}
