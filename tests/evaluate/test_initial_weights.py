import numpy as np

from dimred.evaluate.initial_weights import starting_points
from dimred.weights.layout import WeightLayout
from dimred.weights.series import CheckpointSeries


def snapshots(folder, values):
    series = CheckpointSeries(folder, keep=40)
    for step, value in enumerate(values, start=1):
        series.append({"w": np.full((2, 1), value, np.float32)}, step=step, epoch=step)
    return series


def test_means_of_all_and_of_the_latest_then_the_last(tmp_path):
    values = [float(number**2) for number in range(9)]
    series = snapshots(tmp_path, values)
    layout = WeightLayout.from_weights({"w": np.zeros((2, 1), np.float32)})
    mean = np.full(2, np.mean(values), np.float32)
    found = dict(starting_points(np.full(2, 64, np.float32), mean, series, layout))
    assert list(found) == ["mean", "mean of the latest 4", "mean of the latest 2", "last"]
    np.testing.assert_array_equal(found["mean"], mean)
    np.testing.assert_array_equal(found["mean of the latest 4"], np.full(2, np.mean(values[-4:])))
    np.testing.assert_array_equal(found["mean of the latest 2"], np.full(2, np.mean(values[-2:])))
    np.testing.assert_array_equal(found["last"], np.full(2, 64))


def test_what_is_not_there_is_left_out():
    layout = WeightLayout.from_weights({"w": np.zeros((2, 1), np.float32)})
    assert [name for name, _ in starting_points(np.zeros(2, np.float32), None, None, layout)] == ["last"]
