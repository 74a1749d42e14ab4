"""``dimred convert`` of shards, folders and what can't be converted; run ``-m torch`` where PyTorch is installed."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.checkpoints.checkpoint_io import read_checkpoint
from dimred.checkpoints.folder import read_one
from dimred.cli.options import options_in_errors
from dimred.errors import CheckpointError
from dimred.merging.convert import convert
from tests.helpers.checkpoint_files import write_file

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{64 * '0'}\nsize 12345\n"
PULL = r" is a pointer of Git LFS, not the file itself; fetch it with git lfs pull"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write two checkpoints in pickled shards with their index, as transformers does, and a trainer's other pickle."""
    import torch

    for step in (100, 200):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        state = network(step).state_dict()
        index = {name: f"pytorch_model-0000{1 + (name > '1')}-of-00002.bin" for name in state}
        for shard in dict.fromkeys(index.values()):
            torch.save({name: state[name] for name in state if index[name] == shard}, folder / shard)
        total = sum(tensor.nbytes for tensor in state.values())
        content = {"metadata": {"total_size": total}, "weight_map": index}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(content))
        (folder / "config.json").write_text("{}")
        torch.save({"step": step}, folder / "training_args.bin")
    return tmp_path / "run"


def network(seed: int):
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


@pytest.mark.torch
def test_pickled_shards_become_shards_with_an_index_and_their_mean_loads(run: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    paths = [*map(Path, (one.out for one in convert(run)))]
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    assert paths == [run / f"checkpoint-{step}" / name for step in (100, 200) for name in names]
    assert {*read_one(run / "checkpoint-100").tensors} == {*network(0).state_dict()}
    assert convert(run) == []
    dimred.merge(run, tmp_path / "mean")
    files = {path.name for path in (tmp_path / "mean").iterdir()}
    assert files == {"README.md", "config.json", "model.safetensors.index.json", *names}
    mean = {
        name: tensor for path in (tmp_path / "mean").glob("*.safetensors") for name, tensor in load_file(path).items()
    }
    one, other, of_mean = network(100), network(200), network(0)
    of_mean.load_state_dict(mean)
    for weight, *pair in zip(of_mean.parameters(), one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(weight, sum(pair) / 2)


@pytest.mark.torch
def test_a_folder_is_converted_into_another(run: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*.*")}
    conversions = convert([run], out=tmp_path / "new")
    assert [Path(one.out).parent for one in conversions] == [
        tmp_path / "new" / f"checkpoint-{step}" for step in (100, 100, 200, 200)
    ]
    assert {path: path.read_bytes() for path in run.rglob("*.*")} == before
    state = network(200).state_dict()
    checkpoint = read_one(tmp_path / "new" / "checkpoint-200")
    for name in state:
        np.testing.assert_array_equal(checkpoint.read(name), state[name].numpy())


@pytest.mark.torch
def test_weights_that_zero_3_has_partitioned_are_refused_also_beside_whole_ones(tmp_path: Path) -> None:
    import torch

    state = network(1).state_dict()
    for count, whole in ((12, ()), (2, [name for name in state if not name.endswith("weight") or name[0] == "1"])):
        module = {name: state[name] if name in whole else torch.empty(0) for name in state}
        path = tmp_path / f"zero_pp_rank_0_mp_rank_00_model_states_{count}.pt"
        torch.save({"module": module, "ds_version": "0.15"}, path)
        with pytest.raises(CheckpointError, match=rf"no values for \d+ of its {len(state)} names, .*zero_to_fp32\.py"):
            convert(path)
        assert not path.with_suffix(".safetensors").exists()


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_the_command_in_the_message_about_a_distributed_checkpoint_makes_a_file_that_is_converted(
    tmp_path: Path,
) -> None:
    import torch.distributed.checkpoint

    state = network(1).state_dict()
    torch.distributed.checkpoint.save({"model": state}, checkpoint_id=tmp_path / "run" / "checkpoint-1")
    messages = []
    for call in (
        lambda: convert(tmp_path / "run"),
        lambda: convert(tmp_path / "run" / "checkpoint-1" / "__0_0.distcp"),
        lambda: dimred.merge(tmp_path / "run", tmp_path / "out"),
        lambda: read_one(tmp_path / "run" / "checkpoint-1"),
    ):
        with pytest.raises(CheckpointError) as error:
            call()
        messages.append(str(error.value))
    assert len({*messages}) == 1
    python, *words = shlex.split(messages[0].partition("make one file of it: ")[2])
    assert python == "python"
    subprocess.run([sys.executable, *words], check=True, timeout=120, capture_output=True)
    (conversion,) = convert(f"{tmp_path / 'run' / 'checkpoint-1'}.pt")
    assert {*read_one(Path(conversion.out)).tensors} == {*state}


@pytest.mark.torch
def test_a_pointer_or_a_damaged_index_among_the_shards_ends_a_conversion_before_it_begins(run: Path) -> None:
    index, shard = (
        run / "checkpoint-200" / f"pytorch_model{end}" for end in (".bin.index.json", "-00002-of-00002.bin")
    )
    for path, content, words in (
        (index, "{}", "is not an index of shards"),
        (index, POINTER, PULL),
        (shard, POINTER, PULL),
    ):
        before = path.read_bytes()
        path.write_text(content)
        with pytest.raises(CheckpointError, match=f"{path.name}{'' if words is PULL else ' '}{words}"):
            convert(run)
        assert not [*run.rglob("*.safetensors")]
        path.write_bytes(before)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth.tar"])
def test_a_pointer_in_place_of_a_pickle_is_named_before_it_is_sent_to_be_converted(tmp_path: Path, name: str) -> None:
    for step in (1, 2):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / name).write_text(POINTER)
    for call in (
        lambda: dimred.merge(tmp_path, tmp_path / "out"),
        lambda: dimred.merge([folder, tmp_path / "checkpoint-1"], tmp_path / "out"),
        lambda: dimred.CheckpointSeries.open(tmp_path),
    ):
        with pytest.raises(CheckpointError, match=PULL):
            call()


def test_an_index_of_shards_in_another_format_is_not_copied(tmp_path: Path) -> None:
    for step in (1, 2):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        write_file(folder / "model.safetensors", {"w": np.full((2, 2), step, np.float32)})
        for name in ("pytorch_model.bin.index.json", "tf_model.h5.index.json", "vocabulary.index.json"):
            (folder / name).write_text("{}")
    dimred.merge(tmp_path / "run", tmp_path / "mean")
    assert {path.name for path in (tmp_path / "mean").iterdir()} == {
        "README.md", "model.safetensors", "vocabulary.index.json",
    }  # fmt: skip


@pytest.mark.torch
def test_weights_beside_a_nested_dictionary_are_not_dropped_for_it(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "net.pt"
    extra = {"scale": torch.ones(1), "amax": torch.ones(3)}  # as Transformer Engine keeps it in a state_dict
    torch.save({"net.weight": torch.full((3, 4), 5.0), "net._extra_state": extra}, path)
    choices = r"net\._extra_state \(raw, 2 tensors, .*the file itself \(raw, 1 tensors, 12 numbers\).* such as key=''"
    with pytest.raises(CheckpointError, match=choices):
        convert(path)
    with pytest.raises(CheckpointError, match=r"such as --key ''$"), options_in_errors("key"):
        convert(path)
    (one,) = convert(path, key="")
    (weight,) = read_checkpoint(one.out).values()
    np.testing.assert_array_equal(weight, np.full((3, 4), 5.0))


@pytest.mark.torch
def test_of_two_arrays_with_one_name_none_is_dropped(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "net.pt"
    torch.save({"net": {"a": {"b.w": torch.ones(2)}, "a.b": {"w": torch.zeros(2)}}}, path)
    with pytest.raises(
        CheckpointError, match=r"key is 'net', below which two arrays .* get one name; there are net\.a "
    ):
        convert(path, key="net")
    assert {name: value[0] for name, value in read_checkpoint(convert(path, key="net.a.b")[0].out).items()} == {"w": 0}


@pytest.mark.torch
def test_a_view_with_a_sign_of_its_own_keeps_its_values(tmp_path: Path) -> None:
    import torch

    values = torch.arange(6.0).reshape(2, 3)
    torch.save({"net.weight": torch._neg_view(values)}, tmp_path / "net.pt")
    (one,) = convert(tmp_path / "net.pt")
    np.testing.assert_array_equal(read_checkpoint(one.out)["net.weight"], -values.numpy())


@pytest.mark.torch
@pytest.mark.parametrize("n_missing", [100, 4000])
def test_a_file_that_was_cut_is_named(tmp_path: Path, n_missing: int) -> None:
    import torch

    path = tmp_path / "net.pt"
    torch.save({"net.weight": torch.ones(1000)}, path)
    path.write_bytes(path.read_bytes()[:-n_missing])
    with pytest.raises(CheckpointError, match=r"net\.pt can't be read"):
        convert(path)


@pytest.mark.torch
def test_what_lies_beside_the_weights_does_not_keep_them_from_being_read(tmp_path: Path) -> None:
    import collections

    import torch

    notes = {"best": np.float64(0.9), "state": np.random.RandomState(1).get_state(), "last": collections.deque([1, 2])}
    torch.save({"model": network(1).state_dict(), **notes}, tmp_path / "n-1.pt")
    (conversion,) = convert(tmp_path / "n-1.pt")
    assert conversion.key == "model"
    assert {*read_checkpoint(conversion.out)} == {*network(1).state_dict()}


@pytest.mark.torch
def test_weights_in_lists_and_below_numbers_are_not_dropped(tmp_path: Path) -> None:
    import torch

    state = network(1).state_dict()
    for name, content in (
        ("a", {"model": {**state, "experts": [state]}}),
        ("b", {"model": state, "heads": {0: state}}),
    ):
        torch.save(content, tmp_path / f"{name}.pt")
        with pytest.raises(CheckpointError, match=r"has several weights: .*(model\.experts\.0|heads\.0)"):
            convert(tmp_path / f"{name}.pt")
    (conversion,) = convert(tmp_path / "b.pt", key="heads.0")
    assert {*read_checkpoint(conversion.out)} == {*state}


@pytest.mark.torch
def test_a_folder_s_other_files_are_passed_over_and_an_outdated_result_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    caplog.set_level("INFO")
    (tmp_path / "vocab.pkl").write_bytes(b"\x80\x04]\x94.")
    (tmp_path / "data.bin").write_bytes(bytes(100))
    for name in ("n-1.pt", "model_optim_rng.pt"):
        torch.save(network(1).state_dict(), tmp_path / name)
    torch.save(network(1).state_dict(), tmp_path / "n-2.pt", _use_new_zipfile_serialization=False)
    assert len(convert(tmp_path)) == 3
    assert sum("was not written by PyTorch" in message for message in caplog.messages) == 2
    caplog.clear()
    os.utime(tmp_path / "n-1.pt", (2e9, 2e9))
    assert convert(tmp_path) == []
    assert sum("n-1.pt is newer than" in message for message in caplog.messages) == 1
