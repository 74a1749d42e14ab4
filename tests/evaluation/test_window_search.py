"""The search for an average: on a trajectory whose best window is known."""

from pathlib import Path

import numpy as np
import pytest

from dimred.averaging.selection import Measured, Selection
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.evaluation.averages import SnapshotAverages
from dimred.evaluation.window_search import search_windows

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
    found = search_windows(averages, squares, [("last", 1.0, last)], Selection())
    assert found.candidate.name.endswith(f"to {10 * end}")
    assert 6 < found.candidate.effective_size <= last_good - first_good + 1
    np.testing.assert_array_equal(squares(found.weights).losses, found.candidate.losses)
    names = [one.name for one in found.selection.candidates]
    assert names[0] == "last"
    assert len(set(names)) == len(names)
    assert {name.partition(" ")[0].partition("=")[0] for name in names[1:]} == {"uniform", "linear", "exponential"}


def test_the_last_weights_are_kept_where_no_average_is_better(tmp_path: Path) -> None:
    averages = SnapshotAverages(snapshots(tmp_path, N + 5, N + 5), LAYOUT)
    last = np.zeros(M, np.float32)
    found = search_windows(averages, squares, [("last", 1.0, last)], Selection())
    assert (found.candidate.name, found.weights is last) == ("last", True)


@pytest.mark.parametrize(("count", "windows"), [(1, []), (2, ["uniform of 2 snapshots, steps 230 to 240"])])
def test_of_so_few_snapshots_there_are_no_other_profiles(count: int, windows: list[str], tmp_path: Path) -> None:
    averages = SnapshotAverages(snapshots(tmp_path, 0, N).select(last=count), LAYOUT)
    found = search_windows(averages, squares, [("last", 1.0, np.full(M, 9, np.float32))], Selection())
    assert [one.name for one in found.selection.candidates] == ["last", *windows]


def test_the_last_weights_alone_where_there_are_no_snapshots() -> None:
    found = search_windows(
        SnapshotAverages(None, LAYOUT), squares, [("last", 1.0, np.ones(M, np.float32))], Selection()
    )
    assert [one.name for one in found.selection.candidates] == ["last"]
