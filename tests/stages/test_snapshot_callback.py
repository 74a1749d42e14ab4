"""``dimred.SnapshotCallback`` in ``mindspore.train.Model``, as a user's own program uses it."""

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

import dimred
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.errors import ConfigError, SeriesError

N_STEPS = 4  # in an epoch


def batches() -> ms.dataset.NumpySlicesDataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8 * N_STEPS, 5)).astype(np.float32)
    return ms.dataset.NumpySlicesDataset((x, x[:, :2] ** 2), shuffle=False).batch(8)


def model() -> tuple[nn.Cell, ms.train.Model]:
    ms.set_seed(1)
    network = nn.SequentialCell(nn.Dense(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dense(6, 2))
    groups = [{"params": network[3].trainable_params(), "weight_decay": 0.1}, {"params": network[0].trainable_params()}]
    groups.append({"params": network[1].trainable_params()})
    return network, ms.train.Model(network, nn.MSELoss(), nn.Momentum(groups, 0.1, 0.9))


def values(network: nn.Cell) -> dict[str, np.ndarray]:
    return {weight.name: weight.asnumpy() for weight in network.trainable_params()}


@pytest.mark.parametrize("sink", [False, True])
def test_a_snapshot_an_epoch(tmp_path: Path, sink: bool) -> None:
    network, trained = model()
    callback = dimred.SnapshotCallback(tmp_path / "snapshots", keep=2)
    trained.train(3, batches(), callbacks=[callback], dataset_sink_mode=sink)
    series = dimred.CheckpointSeries.open(tmp_path / "snapshots")
    assert [(entry.epoch, entry.step) for entry in series.entries] == [(2, 2 * N_STEPS), (3, 3 * N_STEPS)]
    newest = read_checkpoint(series.paths[-1])
    assert list(newest) == [weight.name for weight in network.trainable_params()]  # no momenta, the network's order
    for name, value in values(network).items():
        np.testing.assert_array_equal(newest[name], value)


def test_of_schedule_free_training_the_averaged_point_is_kept(tmp_path: Path) -> None:
    network = nn.SequentialCell(nn.Dense(5, 6), nn.Tanh(), nn.Dense(6, 2))
    optimizer = dimred.ScheduleFree(network.trainable_params(), 0.5)
    trained = ms.train.Model(network, nn.MSELoss(), optimizer)
    trained.train(2, batches(), callbacks=[dimred.SnapshotCallback(tmp_path)], dataset_sink_mode=False)
    newest = read_checkpoint(dimred.CheckpointSeries.open(tmp_path).paths[-1])
    for name, value in optimizer.averaged().items():
        np.testing.assert_array_equal(newest[name], value)
        assert (value != values(network)[name]).any()


def test_snapshots_within_epochs_in_another_format(tmp_path: Path) -> None:
    _, trained = model()
    callback = dimred.SnapshotCallback(tmp_path, every=3, format="safetensors")
    trained.train(2, batches(), callbacks=[callback], dataset_sink_mode=False)
    series = dimred.CheckpointSeries.open(tmp_path)
    assert [entry.step for entry in series.entries] == [3, 6]
    assert {path.suffix for path in series.paths} == {".safetensors"}


def test_a_training_goes_on_in_its_folder_and_another_one_is_refused(tmp_path: Path) -> None:
    _, trained = model()
    trained.train(2, batches(), callbacks=[dimred.SnapshotCallback(tmp_path)], dataset_sink_mode=False)
    _, goes_on = model()
    callback = dimred.SnapshotCallback(tmp_path, resume=True)
    goes_on.train(3, batches(), callbacks=[callback], dataset_sink_mode=False, initial_epoch=2)
    goes_on.train(4, batches(), callbacks=[callback], dataset_sink_mode=False, initial_epoch=3)
    assert [entry.epoch for entry in dimred.CheckpointSeries.open(tmp_path).entries] == [1, 2, 3, 4]
    _, another = model()
    with pytest.raises(SeriesError, match="has snapshots of an earlier training"):
        another.train(1, batches(), callbacks=[dimred.SnapshotCallback(tmp_path)], dataset_sink_mode=False)
    callback = dimred.SnapshotCallback(tmp_path, resume=True)
    with pytest.raises(ConfigError, match="up to step 16, and this training begins after step 0; name another folder"):
        another.train(1, batches(), callbacks=[callback], dataset_sink_mode=False)


@pytest.mark.parametrize("every", [0, 1.5, "epoch"])
def test_every_must_be_a_whole_number_of_steps(tmp_path: Path, every: object) -> None:
    with pytest.raises(ConfigError, match=r"every is .*; it must be a whole number of at least 1"):
        dimred.SnapshotCallback(tmp_path, every=every)
