"""``dimred pca`` takes a manifest, or what MindSpore's ``ModelCheckpoint`` leaves, and else names the way round."""

import os

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from dimred.checkpoints.checkpoint_io import read_checkpoint, read_index
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import BasisMismatchError, CheckpointError, ConfigError, SeriesError
from dimred.merging.merge import merge
from dimred.subspace.fit import fit_basis
from tests.helpers.checkpoint_files import network, write_file, write_run
from tests.oracles.pca import principal_components, subspace_distance


def test_a_folder_of_model_checkpoint_is_fitted_as_numpy_does(tmp_path, caplog):
    caplog.set_level("INFO")
    cell = nn.SequentialCell(nn.Dense(4, 3), nn.BatchNorm1d(3))
    data = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
    batches = ms.dataset.NumpySlicesDataset((data, data[:, :3]), shuffle=False).batch(6)
    keeper = ms.train.ModelCheckpoint("net", str(tmp_path), ms.train.CheckpointConfig(2, keep_checkpoint_max=9))
    model = ms.train.Model(cell, nn.MSELoss(), nn.Momentum(cell.trainable_params(), 0.1, 0.9))
    model.train(3, batches, callbacks=[keeper], dataset_sink_mode=False)
    ms.save_checkpoint(cell, str(tmp_path / "net_best.ckpt"))
    series = CheckpointSeries.open(tmp_path)
    assert [path.name for path in series.paths][:3] == ["net-1_2.ckpt", "net-1_4.ckpt", "net-2_2.ckpt"]
    assert series.steps == [2, 4, 6, 8, 10, 12]
    assert f"{tmp_path}/net_best.ckpt is not named NAME-EPOCH_STEP, and is passed over" in caplog.text
    names = [one.name for one in cell.trainable_params()]
    rows = [np.concatenate([read_checkpoint(path)[name].ravel() for name in names]) for path in series.paths]
    basis = fit_basis(tmp_path, 2, network=cell)
    assert subspace_distance(basis.components, principal_components(np.array(rows), 2)[1]) < 1e-6


@pytest.mark.parametrize("name", ["net-2_2_breakpoint", "net-1M"])
def test_a_snapshot_whose_name_tells_no_step_is_refused_by_pca_as_by_merge(tmp_path, name):
    for number, stem in enumerate(("net-1_1", "net-2_1", name, "best")):
        write_file(tmp_path / f"{stem}.safetensors", network(number))
    with pytest.raises(SeriesError, match=f"series is .* where '{name}' is not named NAME-EPOCH_STEP .* rename it"):
        fit_basis(tmp_path, 2)
    with pytest.raises(ConfigError, match=f"where '{name}' belongs among"):
        merge(tmp_path, tmp_path / "mean.safetensors")


@pytest.mark.parametrize("link", [os.link, os.symlink], ids=["hard", "symbolic"])
def test_pca_and_merge_count_the_same_snapshots(tmp_path, link):
    """Links to equal bytes, which have a step each, count each; a link without a step does not count."""
    store, run = tmp_path / "store", tmp_path / "run"
    run.mkdir()
    for step, seed in ((1, 0), (2, 1), (3, 1), (4, 2)):
        blob = write_file(store / f"{seed}.safetensors", network(seed))
        link(blob, run / f"net-1_{step}.safetensors")
    link(store / "2.safetensors", run / "last.safetensors")
    sources = [source.step for source in fit_basis(run, 2).snapshots]
    record = merge(run, tmp_path / "mean.safetensors")
    assert sources == [one["step"] for one in record["checkpoints"]] == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["shards", "folders", "odd names", "nothing"])
def test_any_other_folder_is_refused_and_the_way_round_leads_on(tmp_path, kind):
    if kind in ("shards", "folders"):
        arrays = write_run(tmp_path, 3, sharded=kind == "shards")
    else:
        arrays = [network(seed) for seed in range(3)]
        for number, tensors in enumerate(arrays if kind == "odd names" else (), start=9):
            write_file(tmp_path / f"epoch_{number}.safetensors", tensors)
    with pytest.raises(
        SeriesError, match=r"NAME-EPOCH_STEP.*CheckpointSeries\.create\(folder\)\.append\(weights, step="
    ) as error:
        fit_basis(tmp_path, 2)
    assert f"series is {str(tmp_path)!r}" in str(error.value)
    series = CheckpointSeries.create(tmp_path / "series")
    for step, tensors in enumerate(arrays, start=1):
        weights = {name: tensors[name] for name in ("conv.weight", "fc.weight")}
        series.append(weights, step=step, epoch=step)
    assert fit_basis(series, 2).layout.names == ("conv.weight", "fc.weight")


@pytest.mark.parametrize("name", ["a-1_1.ckpt", "a-1_1.safetensors"])
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    for call in (lambda: fit_basis(tmp_path, 2), lambda: read_index(tmp_path / name)):
        with pytest.raises(CheckpointError, match=r"a-1_1\.\w+ is a Git LFS pointer.*git lfs pull"):
            call()


def test_safetensors_of_mindspore_are_sorted_by_name_so_the_network_refuses_their_basis(tmp_path):
    (tmp_path / "s").mkdir()
    for number in range(4):
        cell = nn.SequentialCell(nn.Conv2d(1, 2, 3, weight_init="normal"), nn.BatchNorm2d(2))
        ms.save_checkpoint(cell, str(tmp_path / "s" / f"n-{number}_1.safetensors"), format="safetensors")
    with pytest.raises(BasisMismatchError, match=r"the order differs.*\.safetensors files, add --names-from"):
        fit_basis(tmp_path / "s", 2).check(WeightLayout.from_network(cell))
    assert fit_basis(tmp_path / "s", 2, network=cell).n_weights == 18 + 4


def test_a_folder_above_the_snapshots_names_the_one_below(tmp_path):
    snapshots = tmp_path / "device0_stage_1" / "checkpoint_stage_1" / "checkpoint_pca"
    snapshots.mkdir(parents=True)
    for folder in list(snapshots.parents)[:3]:
        with pytest.raises(SeriesError, match="the snapshots of this run are in") as error:
            CheckpointSeries.open(folder)
        assert repr(str(snapshots)) in str(error.value)
