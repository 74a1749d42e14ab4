"""Plain averages of a series, against their formulas."""

from pathlib import Path

import numpy as np
import pytest

from dimred.evaluate import averages
from dimred.evaluate.averages import SnapshotAverages, Window, average_snapshots, combine_snapshots
from dimred.weights.checkpoint_io import read_checkpoint
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


@pytest.mark.parametrize("end", [4, 3])
def test_uniform_windows_are_plain_means_and_every_file_is_read_once(made, end: int, monkeypatch) -> None:
    series, layout, vectors = made
    read: list[str] = []
    monkeypatch.setattr(
        averages, "read_checkpoint", lambda path, names: read.append(path.name) or read_checkpoint(path, names)
    )
    found = list(SnapshotAverages(series, layout).uniform(end, [3, 1, 2]))
    assert [window for window, _ in found] == [Window(end - length, end) for length in (1, 2, 3)]
    assert len(read) == len(set(read)) == 3
    for window, mean in found:
        np.testing.assert_allclose(mean, vectors[window.first : end].mean(0), rtol=1e-6, atol=1e-7)


def test_a_window_measured_alone_is_the_one_from_the_running_sum_to_the_byte(made) -> None:
    series, layout, _ = made
    of_series = SnapshotAverages(series, layout)
    for window, mean in of_series.uniform(4, [2, 3, 4]):
        assert next(of_series.of([window])).tobytes() == mean.tobytes()


def test_several_profiles_in_one_reading(made) -> None:
    series, layout, vectors = made
    of_series = SnapshotAverages(series, layout)
    windows = [Window(1, 4, "linear"), Window(0, 4, "exponential=0.3"), Window(0, 2)]
    expected = [
        oracle.weighted_mean(list(vectors[1:]), [1, 2, 3]),
        oracle.weighted_mean(list(vectors), [0.027, 0.7 * 0.09, 0.7 * 0.3, 0.7]),
        vectors[:2].mean(0),
    ]
    for window, mean, by_hand in zip(windows, of_series.of(windows), expected, strict=True):
        np.testing.assert_allclose(mean, by_hand, rtol=1e-6, atol=1e-7, err_msg=of_series.name(window))
    assert of_series.name(windows[0]) == "linear of 3 snapshots, steps 4 to 6"
    assert of_series.width(windows[2]) == 2
    assert of_series.width(windows[0]) == pytest.approx(36 / 14)


def test_any_combination(made) -> None:
    series, layout, vectors = made
    coefficients = [0.5, 0, -0.25, 1]
    expected = oracle.weighted_mean(list(vectors), coefficients)
    np.testing.assert_allclose(combine_snapshots(series, layout, coefficients), expected, rtol=1e-6)


def test_without_snapshots_there_is_no_window(made) -> None:
    assert SnapshotAverages(None, made[1]).steps == []
