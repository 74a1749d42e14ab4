"""The average that is chosen, on a trajectory whose best window is known; and as a user's own program asks for it."""

from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor, nn

import dimred
from dimred.averaging.choice import Measured, Selection
from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import ConfigError
from dimred.evaluation.averages import SnapshotAverages, choose_average
from dimred.train_step.network_state import moving_statistics
from tests.helpers.networks import weight_vector


@pytest.fixture
def network() -> nn.Cell:
    return nn.Dense(2, 3)


@pytest.fixture
def series(network: nn.Cell, tmp_path: Path) -> dimred.CheckpointSeries:
    """Ten snapshots, all ones and a little noise."""
    rng, series = np.random.default_rng(0), dimred.CheckpointSeries(tmp_path / "snapshots")
    for step in range(1, 11):
        noisy = {p.name: (1 + 0.1 * rng.normal(size=p.shape)).astype(np.float32) for p in network.trainable_params()}
        series.append(noisy, step=step, epoch=step)
    return series


def test_the_average_that_the_losses_choose_is_put(network: nn.Cell, series: dimred.CheckpointSeries) -> None:
    asked = []

    def losses() -> np.ndarray:
        return np.square(weight_vector(network) - 1.0)

    found = dimred.choose_start(network, series, losses, lambda: asked.append(1))
    assert found.candidate.effective_size > 5
    assert len(asked) == len(found.selection.candidates) + 1
    np.testing.assert_array_equal(weight_vector(network), found.weights)
    assert repr(found).startswith(f"{found.candidate.name}: loss 0.0")


@pytest.mark.parametrize("losses", [0.5, np.ones((3, 2)), np.ones(1)])
def test_losses_that_are_not_one_for_each_sample(losses, network: nn.Cell, series: dimred.CheckpointSeries) -> None:
    with pytest.raises(ConfigError, match="it must give one loss for each held-out sample"):
        dimred.choose_start(network, series, lambda: losses)


def test_the_losses_are_measured_in_evaluation_mode_and_the_mode_is_put_back(tmp_path: Path) -> None:
    network = nn.SequentialCell(nn.Dense(2, 3), nn.BatchNorm1d(3), nn.Dropout(p=0.5))
    network.set_train(True)
    equal = {weight.name: weight for weight in network.trainable_params()}
    series = dimred.CheckpointSeries(tmp_path / "snapshots")
    for step in range(1, 8):
        series.append(equal, step=step, epoch=step)
    statistics = [value.asnumpy().copy() for value in moving_statistics(network)]
    x = Tensor(np.random.default_rng(1).normal(size=(8, 2)).astype(np.float32))
    found = dimred.choose_start(network, series, lambda: network(x).asnumpy().mean(axis=1))
    assert len({candidate.loss for candidate in found.selection.candidates}) == 1
    for value, before in zip(moving_statistics(network), statistics, strict=True):
        np.testing.assert_array_equal(value.asnumpy(), before)
    assert all(cell.training for _, cell in network.cells_and_names())


def test_weights_that_are_not_finite_are_not_chosen_however_low_their_loss(network: nn.Cell, tmp_path: Path) -> None:
    """ReLU on a CPU turns NaN into 0, so a loss may not show them."""
    good = {weight.name: np.ones(weight.shape, np.float32) for weight in network.trainable_params()}
    series = dimred.CheckpointSeries(tmp_path / "snapshots")
    for step in range(1, 8):
        series.append(good, step=step, epoch=step)
    write_checkpoint(series.paths[-1], good | {"weight": np.full((3, 2), np.nan, np.float32)})
    network.weight.set_data(Tensor(np.full((3, 2), np.inf, np.float32)))
    found = dimred.choose_start(network, series, lambda: np.nan_to_num(np.square(weight_vector(network) - 1.0)))
    assert np.isfinite(found.weights).all()
    np.testing.assert_array_equal(weight_vector(network), found.weights)


def test_another_number_of_losses_than_before_is_refused_and_the_network_stays(
    network: nn.Cell, series: dimred.CheckpointSeries
) -> None:
    sizes, before = iter(range(5, 99)), weight_vector(network)
    with pytest.raises(ConfigError, match="losses gave 5 numbers for one candidate and 6 for another"):
        dimred.choose_start(network, series, lambda: np.ones(next(sizes)))
    np.testing.assert_array_equal(weight_vector(network), before)


N, M = 24, 200
LAYOUT = WeightLayout.from_weights({"w": np.zeros((M, 1), np.float32)})


def snapshots(folder: Path, first_good: int, last_good: int) -> CheckpointSeries:
    """Snapshots around the optimum 0, with noise, from one number to another; far away before and after."""
    rng = np.random.default_rng(0)
    series = CheckpointSeries(folder, keep=N)
    for number in range(N):
        distance = max(first_good - number, 0) + max(number - last_good, 0)
        weights = rng.normal(0.0, 1.0, (M, 1)) + distance
        series.append({"w": weights.astype(np.float32)}, step=10 * (number + 1), epoch=number + 1)
    return series


def squares(vector: np.ndarray) -> Measured:
    """Each weight is a sample."""
    return Measured(vector.astype(np.float64) ** 2)


@pytest.mark.parametrize(("first_good", "last_good", "end"), [(4, N, N), (0, 11, 12)])
def test_it_finds_the_windows_that_hold_the_good_snapshots_wherever_they_end(
    first_good: int, last_good: int, end: int, tmp_path: Path
) -> None:
    averages = SnapshotAverages(snapshots(tmp_path, first_good, last_good), LAYOUT)
    last = np.ones(M, np.float32)
    found = choose_average(averages, squares, last, Selection())
    assert found.candidate.name.endswith(f"to {10 * end}")
    assert 6 < found.candidate.effective_size <= last_good - first_good + 1
    np.testing.assert_array_equal(squares(found.weights).losses, found.candidate.losses)
    names = [one.name for one in found.selection.candidates]
    assert names[0] == "last"
    assert len(set(names)) == len(names)
    assert {name.partition(" ")[0] for name in names[1:]} == {"uniform", "linear"}
    assert len(names) <= 12
    assert "linear" in names[-1]


def test_the_last_weights_are_kept_where_no_average_is_better(tmp_path: Path) -> None:
    averages = SnapshotAverages(snapshots(tmp_path, N + 5, N + 5), LAYOUT)
    last = np.zeros(M, np.float32)
    found = choose_average(averages, squares, last, Selection())
    assert (found.candidate.name, found.weights is last) == ("last", True)


@pytest.mark.parametrize(("count", "windows"), [(1, []), (2, ["uniform of 2 snapshots, steps 230 to 240"])])
def test_of_so_few_snapshots_there_are_no_other_profiles(count: int, windows: list[str], tmp_path: Path) -> None:
    averages = SnapshotAverages(snapshots(tmp_path, 0, N).select(last=count), LAYOUT)
    found = choose_average(averages, squares, np.full(M, 9, np.float32), Selection())
    assert [one.name for one in found.selection.candidates] == ["last", *windows]


def test_the_last_weights_alone_where_there_are_no_snapshots() -> None:
    found = choose_average(SnapshotAverages(None, LAYOUT), squares, np.ones(M, np.float32), Selection())
    assert [one.name for one in found.selection.candidates] == ["last"]
