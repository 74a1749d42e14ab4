"""``dimred pca`` takes the folders that other programs leave, as ``dimred merge`` does, and says what it can't take."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

import dimred
from dimred.checkpoints.checkpoint_io import open_file, read_index
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import CheckpointError, SeriesError
from dimred.subspace.fit import fit_basis
from tests.helpers.checkpoint_files import network, write_file, write_run
from tests.oracles.pca import principal_components, subspace_distance


def check_pca(folder, arrays):
    vectors = np.array([np.concatenate([one["conv.weight"].ravel(), one["fc.weight"].ravel()]) for one in arrays])
    basis = fit_basis(folder, 2)
    assert basis.layout.names == ("conv.weight", "fc.weight")
    assert subspace_distance(basis.components, principal_components(vectors, 2)[1]) < 1e-6
    return basis


@pytest.mark.parametrize("sharded", [False, True])
def test_numbered_folders_with_a_file_or_shards(tmp_path, sharded):
    arrays = write_run(tmp_path, 4, sharded=sharded)
    basis = check_pca(tmp_path, arrays)
    assert [source.step for source in basis.snapshots] == [1000, 2000, 3000, 4000]
    assert basis.snapshots[0].file == "checkpoint-1000"


def test_files_with_an_epoch_in_their_names(tmp_path):
    arrays = [network(seed) for seed in range(4)]
    for number, tensors in enumerate(arrays, start=9):
        write_file(tmp_path / f"epoch_{number}.safetensors", tensors)
    check_pca(tmp_path, arrays)
    entries = CheckpointSeries.open(tmp_path).entries
    assert [(entry.epoch, entry.file) for entry in entries] == [(n, f"epoch_{n}.safetensors") for n in range(9, 13)]


@pytest.mark.parametrize("name", ["a-1_1.ckpt", "a-1_1.safetensors"])
def test_a_pointer_of_git_lfs_is_named(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    for call in (
        lambda: fit_basis(tmp_path, 2),
        lambda: read_index(tmp_path / name),
        lambda: dimred.merge([tmp_path / name, tmp_path / name], tmp_path / f"out-{name}"),
    ):
        with pytest.raises(CheckpointError, match=r"a-1_1\.\w+ is a pointer of Git LFS.*git lfs pull"):
            call()


def test_safetensors_of_mindspore_need_names_at_once(tmp_path):
    (tmp_path / "s").mkdir()
    for number in range(4):
        cell = nn.SequentialCell(nn.Conv2d(1, 2, 3, weight_init="normal"), nn.BatchNorm2d(2))
        ms.save_checkpoint(cell, str(tmp_path / "s" / f"n-{number}_1.safetensors"), format="safetensors")
    with pytest.raises(CheckpointError, match=r"n-0_1\.safetensors was written by MindSpore.*--names-from"):
        fit_basis(tmp_path / "s", 2)
    assert fit_basis(tmp_path / "s", 2, network=cell).n_weights == 18 + 4


@pytest.mark.parametrize("name", ["dropout/seed_generator/seed_generator_state", "rngs.default.key", "rng_state"])
def test_states_of_random_generators_are_no_quantised_weights(tmp_path, name):
    for seed in (1, 2):
        state = np.array([seed, seed + 1], np.uint32)
        write_file(tmp_path / f"n-{seed}.safetensors", network(seed) | {name: state, "ids": np.arange(3)})
    assert open_file(tmp_path / "n-1.safetensors").integers == ("ids",)
    dimred.merge(tmp_path, tmp_path / "mean.safetensors")


def test_a_folder_above_the_snapshots_names_the_one_below(tmp_path):
    snapshots = tmp_path / "device0_stage_1" / "checkpoint_stage_1" / "checkpoint_pca"
    snapshots.mkdir(parents=True)
    for folder in list(snapshots.parents)[:3]:
        with pytest.raises(SeriesError, match="the snapshots of this run are in") as error:
            CheckpointSeries.open(folder)
        assert repr(str(snapshots)) in str(error.value)
