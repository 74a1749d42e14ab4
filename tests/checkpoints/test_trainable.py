"""Without a manifest, the network or the user's word, weights are all floats that are no running statistics."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.experimental import optim

import dimred
from dimred.checkpoints.checkpoint_io import read_checkpoint, read_index, write_checkpoint
from dimred.checkpoints.trainable import trainable_layout
from dimred.errors import BasisMismatchError, CheckpointError
from dimred.merging.saved_network import SavedNetwork
from dimred.subspace.basis import load_basis
from dimred.subspace.fit import fit_basis
from tests.helpers.optimizers import OPTIMIZERS, optimizer_of

WITHOUT_COUNTER = (optim.Adadelta, optim.RMSprop, optim.SGD)


def network():
    return nn.SequentialCell(nn.Conv2d(1, 2, 3, has_bias=True), nn.BatchNorm2d(2), nn.PReLU(), nn.Dense(2, 3))


def save_step(path, cell, optimizer):
    loss = nn.WithLossCell(cell, nn.SoftmaxCrossEntropyWithLogits(sparse=True))
    ms.save_checkpoint(nn.TrainOneStepCell(loss, optimizer), str(path), format=path.suffix[1:])


def test_the_state_of_every_optimizer_is_refused_and_the_three_ways_are_named(tmp_path):
    assert len(OPTIMIZERS) >= 30
    for number, kind in enumerate([*OPTIMIZERS, dimred.ScheduleFree]):
        if kind in WITHOUT_COUNTER:
            continue
        cell = network()
        parameters = cell.trainable_params()
        path = tmp_path / f"{number}.{('ckpt', 'safetensors')[number % 2]}"
        save_step(path, cell, optimizer_of(kind, parameters) if kind in OPTIMIZERS else kind(parameters, 0.1))
        with pytest.raises(CheckpointError, match="holds an optimizer's state, as its entry") as error:
            trainable_layout(read_index(path), path)
        for way in (path.name, "network alone", "--names-from", "manifest.json", "layout or network"):
            assert way in str(error.value), kind


@pytest.mark.parametrize("kind", WITHOUT_COUNTER)
def test_the_basis_of_a_state_without_a_counter_is_refused_by_the_network(tmp_path, kind):
    for epoch in (1, 2, 3):
        cell = nn.SequentialCell(nn.Dense(2, 3, weight_init="normal"))
        save_step(tmp_path / f"net-{epoch}_5.ckpt", cell, optimizer_of(kind, cell.trainable_params()))
    basis = fit_basis(tmp_path, 2, out=tmp_path / "pca_mat.npy")
    with pytest.raises(BasisMismatchError, match="in the basis and is missing from the network"):
        load_basis(basis.path, network=cell)


def test_full_checkpoints_are_fitted_and_merged_by_the_names_of_another_file(tmp_path):
    (tmp_path / "run").mkdir()
    for epoch in (1, 2, 3):
        cell = nn.SequentialCell(nn.Conv2d(1, 2, 3, weight_init="normal"), nn.BatchNorm2d(2))
        save_step(tmp_path / "run" / f"net-{epoch}_5.ckpt", cell, nn.Momentum(cell.trainable_params(), 0.1, 0.9))
    alone = tmp_path / "alone.ckpt"
    ms.save_checkpoint(cell, str(alone))
    for call in (
        lambda: fit_basis(tmp_path / "run", 2),
        lambda: dimred.merge(tmp_path / "run", tmp_path / "x.ckpt"),
        lambda: dimred.merge(tmp_path / "run", tmp_path / "x.ckpt", names_from=tmp_path / "run" / "net-1_5.ckpt"),
    ):
        with pytest.raises(CheckpointError, match="holds an optimizer's state"):
            call()
    assert fit_basis(tmp_path / "run", 2, network=cell).layout == SavedNetwork.open(alone).layout
    dimred.merge(tmp_path / "run", tmp_path / "mean.ckpt", names_from=alone)
    paths = [*sorted((tmp_path / "run").glob("*.ckpt")), tmp_path / "mean.ckpt"]
    one, two, three, mean = map(read_checkpoint, paths)
    weight = cell.trainable_params()[0].name
    expected = np.mean([one[weight], two[weight], three[weight]], axis=0, dtype=np.float64)
    np.testing.assert_allclose(mean[weight], expected, rtol=1e-6)
    np.testing.assert_array_equal(mean["global_step"], three["global_step"])


def test_a_moving_average_beside_the_named_weights_is_copied_with_its_statistics(tmp_path):
    for number in (1, 3):
        own = {"bn.gamma": np.full(4, number, np.float32), "bn.moving_mean": np.full(4, number, np.float32)}
        write_checkpoint(tmp_path / "alone.ckpt", own)
        ema = {f"ema.{name}": value for name, value in own.items()}
        write_checkpoint(tmp_path / f"n-{number}_1.ckpt", {**own, **ema, "global_step": np.int32(number)})
    runs = sorted(tmp_path.glob("n-*.ckpt"))
    dimred.merge(runs, tmp_path / "mean.ckpt", names_from=tmp_path / "alone.ckpt")
    mean = {name: value.ravel()[0] for name, value in read_checkpoint(tmp_path / "mean.ckpt").items()}
    assert mean == {"bn.gamma": 2, "bn.moving_mean": 2, "ema.bn.gamma": 3, "ema.bn.moving_mean": 3, "global_step": 3}


def test_a_network_alone_has_its_weights_in_its_order_and_no_statistics(tmp_path):
    cell = network()
    ms.save_checkpoint(cell, str(tmp_path / "a.ckpt"), append_dict={"step_num": 3, "note": "x"})
    checkpoint = SavedNetwork.open(tmp_path / "a.ckpt")
    assert list(checkpoint.layout.names) == [one.name for one in cell.trainable_params()]
    assert [name.rpartition(".")[2] for name in checkpoint.statistics] == ["moving_mean", "moving_variance"]


@pytest.mark.parametrize(
    "names",
    [
        ("encoder.l.weight", "query_encoder.l.weight"),
        ("net.l.weight", "left_net.l.weight", "right_net.l.weight"),
        ("l.weight", "head.l.weight"),
        ("model.l.weight", "model_ema.l.weight"),
        ("temperature", "target.l.weight"),
    ],
)
def test_towers_and_copies_of_one_shape_are_weights_like_all_others(tmp_path, names):
    for number in (1, 3):
        arrays = {name: np.full((2, 3), number, np.float32) for name in names}
        write_checkpoint(tmp_path / f"n-{number}_1.ckpt", arrays)
    dimred.merge(tmp_path, tmp_path / "mean.ckpt")
    assert all((read_checkpoint(tmp_path / "mean.ckpt")[name] == 2).all() for name in names)
    assert fit_basis(tmp_path, 1).layout.names == names


@pytest.mark.parametrize(
    "name",
    [
        "bn.running_mean",
        "bn.running_var",
        "bn.moving_mean",
        "bn/moving_variance:0",
        "bn1/_mean",
        "bn_running_mean",
        "batch_stats.bn.mean",
        "batch_stats/bn/var",
    ],
)
def test_statistics_by_the_names_of_every_framework(tmp_path, name):
    arrays = {"dense.mean": np.zeros((2, 3), np.float32), name: np.zeros(3, np.float32)}
    write_checkpoint(tmp_path / "n.safetensors", arrays)
    checkpoint = SavedNetwork.open(tmp_path / "n.safetensors")
    assert (checkpoint.statistics, checkpoint.layout.names) == ((name,), ("dense.mean",))


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_weights_without_numbers_are_refused_or_left_out_by_name(tmp_path, shape):
    """ZeRO-3 leaves such placeholders; PyTorch's observers, which are no weights, are of shape (0,) too."""
    alone = {"l.weight": np.ones((2, 3), np.float32)}
    for number in (1, 2):
        write_checkpoint(tmp_path / f"n-{number}_1.safetensors", alone | {"min_val": np.ones(shape, np.float32)})
    for call in (lambda: fit_basis(tmp_path, 1), lambda: dimred.merge(tmp_path, tmp_path / "mean.safetensors")):
        with pytest.raises(CheckpointError, match=r"'min_val' .* is empty\. .*zero_to_fp32.*names-from"):
            call()
    write_checkpoint(tmp_path / "alone.ckpt", alone)
    dimred.merge(tmp_path, tmp_path / "mean.safetensors", names_from=tmp_path / "alone.ckpt")
    with pytest.raises(CheckpointError, match="has no trainable weights"):
        trainable_layout({}, "x")
