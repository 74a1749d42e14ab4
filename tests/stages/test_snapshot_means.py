"""Stage 1 keeps the mean of the weights over each interval between snapshots, and training is not changed by it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.series import CheckpointSeries
from dimred.config import StageOneConfig
from dimred.errors import ConfigError
from dimred.run_files.run_names import SNAPSHOTS, STAGE_1_CHECKPOINTS
from dimred.stages.disk import STATES, disk_of_stage_1
from dimred.train_step.interval_mean import IntervalMean
from tests.helpers.results import differences, results
from tests.helpers.tiny_run import dying, stage_1_run
from tests.helpers.tiny_task import N_CLASSES, TASK, network

STEPS = 4  # in an epoch
STAGE_1: dict[str, Any] = {
    "epochs": 3,
    "schedule": {"name": "constant", "peak": 0.1, "warmup_epochs": 0},
    "checkpoints": {"every_epochs": 3},
    "evaluate_every_epochs": 3,
}


def config_with(snapshots: dict[str, Any], **options: Any) -> StageOneConfig:
    return StageOneConfig.checked(TASK | STAGE_1 | {"snapshots": snapshots} | options)


def snapshots_of(run: Path) -> dict[int, dict[str, np.ndarray]]:
    """Read the snapshots of a run by their steps."""
    folder = run / STAGE_1_CHECKPOINTS / SNAPSHOTS
    return {entry.step: read_checkpoint(folder / entry.file) for entry in CheckpointSeries.open(folder).entries}


@pytest.mark.parametrize(("per_epoch", "first_epoch"), [(1, 1), (2, 2)])
def test_a_snapshot_is_the_mean_of_all_steps_since_the_last_one(
    per_epoch: int, first_epoch: int, tmp_path: Path
) -> None:
    """The first one is of the steps since the epoch began in which it is taken."""
    stage_1_run(config_with({"per_epoch": STEPS}))(tmp_path / "points", False)
    means = {"per_epoch": per_epoch, "first_epoch": first_epoch, "content": "mean"}
    stage_1_run(config_with(means))(tmp_path / "means", False)
    points, found = snapshots_of(tmp_path / "points"), snapshots_of(tmp_path / "means")
    of_interval = STEPS // per_epoch
    assert list(found) == list(range((first_epoch - 1) * STEPS + of_interval, 3 * STEPS + 1, of_interval))
    for last, weights in found.items():
        path = [points[step] for step in range(last - of_interval + 1, last + 1)]
        assert list(weights) == list(path[0])
        for name, mean in weights.items():
            expected = np.mean([each[name].astype(np.float64) for each in path], axis=0)
            np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-8)
            assert (mean != points[last][name]).any()
    ends = [
        read_checkpoint(tmp_path / run / STAGE_1_CHECKPOINTS / f"network-3_{STEPS}.ckpt") for run in ("points", "means")
    ]
    for name, values in ends[0].items():
        np.testing.assert_array_equal(ends[1][name], values, name)


@pytest.mark.parametrize("first_epoch", [1, 2])
def test_a_run_that_dies_within_an_interval_goes_on_to_the_same_bytes(first_epoch: int, tmp_path: Path) -> None:
    config = config_with({"first_epoch": first_epoch, "content": "mean"}, save_every_steps=1, read_every_steps=1)
    run = stage_1_run(config)
    run(tmp_path / "one", False)
    with dying(IntervalMean, "take"):  # where the first interval ends
        run(tmp_path / "killed", False)
    run(tmp_path / "killed", True)
    assert differences(results(tmp_path / "killed"), results(tmp_path / "one")) == []


def test_schedule_free_training_whose_snapshots_are_averages_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set snapshots\.content to point"):
        config_with({"content": "mean"}, optimizer={"name": "schedule_free"})


def test_full_checkpoints_hold_nothing_of_the_mean_and_any_of_them_can_begin_a_run(tmp_path: Path) -> None:
    means = config_with({"content": "mean"}, checkpoints={"every_epochs": 1})
    stage_1_run(means)(tmp_path / "one", False)
    first = tmp_path / "one" / STAGE_1_CHECKPOINTS / f"network-1_{STEPS}.ckpt"
    assert not [name for name in read_checkpoint(first) if name.startswith(IntervalMean.name)]
    stage_1_run(means, first)(tmp_path / "begun", False)
    expected, found = snapshots_of(tmp_path / "one"), snapshots_of(tmp_path / "begun")
    assert list(found) == [2 * STEPS, 3 * STEPS]
    for step, weights in found.items():
        for name, mean in weights.items():
            np.testing.assert_array_equal(mean, expected[step][name], name)


def test_the_states_need_room_for_two_more_copies_of_the_weights() -> None:
    net = network(N_CLASSES)
    n_weights = sum(weight.size for weight in net.trainable_params())
    mean, point = (disk_of_stage_1(config_with({"content": content}), net) for content in ("mean", "point"))
    assert mean - point == 4 * STATES * 2 * n_weights
