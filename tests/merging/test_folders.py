"""Folders as trainers leave them: pickles among them, weights in sub-folders, and what a network needs beside them."""

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.errors import CheckpointError, ConfigError, DimredError
from dimred.merging.convert import convert
from dimred.merging.inputs import find_paths, open_checkpoints
from tests.helpers.checkpoint_files import BITS, draw, network, read_file, write_file, write_run

PICKLE = b"PK\x03\x04"


def test_checkpoints_that_were_not_converted_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, 2)
    for number in (3, 4, 5):
        folder = tmp_path / f"checkpoint-{number}000"
        folder.mkdir()
        for name in ("pytorch_model.bin", "optimizer.bin", "random_states_0.pkl", "zero_optim_states.pt"):
            (folder / name).write_bytes(PICKLE)
    with pytest.raises(CheckpointError, match="are pickles") as error:
        open_checkpoints(tmp_path)
    paths, _, command = str(error.value).partition(" are pickles")
    assert paths == ", ".join(str(tmp_path / f"checkpoint-{n}000" / "pytorch_model.bin") for n in (3, 4, 5))
    assert shlex.split(command.partition("call: ")[2]) == ["dimred", "convert", str(tmp_path)]


def test_files_of_a_series_that_were_not_converted_are_named_and_other_pickles_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in (1, 2):
        write_file(tmp_path / f"epoch_{epoch}.safetensors", network(epoch))
    (tmp_path / "vocabulary.pkl").write_bytes(PICKLE)
    assert len(open_checkpoints(tmp_path)) == 2
    assert caplog.messages == [f"{tmp_path / 'vocabulary.pkl'} is a pickle, and is passed over"]
    (tmp_path / "epoch_3.pt").write_bytes(PICKLE)
    with pytest.raises(CheckpointError, match=r"epoch_3\.pt is a pickle"):
        open_checkpoints(tmp_path)


def test_the_best_and_the_optimizer_of_mindcv_are_no_checkpoints_of_the_series(tmp_path: Path) -> None:
    for name in ("net18-1_50", "net18-2_50", "net18_best", "optim_net18"):
        write_file(tmp_path / f"{name}.safetensors", network(len(name)))
    assert [one.step for one in open_checkpoints(tmp_path)] == [50, 100]


@pytest.mark.parametrize("part", ["2_Dense", "unet"])
def test_weights_in_sub_folders_are_averaged(tmp_path: Path, part: str) -> None:
    for number in (1, 2):
        folder = tmp_path / "run" / f"checkpoint-{number}"
        write_file(folder / part / "model.safetensors", {"linear.weight": np.full((2, 3), number, np.float32)})
        if part == "2_Dense":
            write_file(folder / "model.safetensors", {"linear.weight": np.full(4, number, np.float32)})
            (folder / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "1_Pooling"}, {"path": part}]))
            (folder / "1_Pooling").mkdir()
            (folder / "1_Pooling" / "config.json").write_text("{}")
    dimred.merge(tmp_path / "run", tmp_path / "out")
    assert read_file(tmp_path / "out" / part / "model.safetensors")["linear.weight"].tolist() == [[1.5] * 3] * 2
    if part == "2_Dense":
        assert read_file(tmp_path / "out" / "model.safetensors")["linear.weight"].tolist() == [1.5] * 4
        assert (tmp_path / "out" / "1_Pooling" / "config.json").exists()


def test_the_configurations_get_the_type_of_the_weights(tmp_path: Path) -> None:
    config = {"torch_dtype": "bfloat16", "text_config": {"dtype": "bfloat16"}, "note": "bfloat16"}
    for number in (1, 2):
        folder = tmp_path / "run" / f"checkpoint-{number}"
        write_file(folder / "model.safetensors", {"w": draw((3, 2), BITS, number)})
        (folder / "config.json").write_text(json.dumps(config))
    dimred.merge(tmp_path / "run", tmp_path / "out", dtype="float32")
    answer = {"torch_dtype": "float32", "text_config": {"dtype": "float32"}, "note": "bfloat16"}
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == answer


def test_a_configuration_that_is_no_utf_8_gets_the_type_too_and_keeps_every_other_byte(tmp_path: Path) -> None:
    content = b'{\r\n"torch_dtype": "bfloat16", "author": "Jos\xe9"\r\n}'
    for number in (1, 2):
        folder = tmp_path / "run" / f"checkpoint-{number}"
        write_file(folder / "model.safetensors", {"w": draw((3, 2), BITS, number)})
        (folder / "my_config.json").write_bytes(content)
    dimred.merge(tmp_path / "run", tmp_path / "out", dtype="float16")
    assert (tmp_path / "out" / "my_config.json").read_bytes() == content.replace(b"bfloat16", b"float16")


def test_what_does_not_change_in_training_is_copied_whatever_its_name(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / "run" / f"checkpoint-{number}"
        write_file(folder / "model.safetensors", {"w": draw((3, 2), np.float32, number)})
        (folder / "additional_chat_templates").mkdir()
        for name in ("source.spm", "bpe.codes", "own.tokenizer", "additional_chat_templates/tool.jinja", "fixed.pth"):
            (folder / name).write_bytes(b"equal")
        for name in ("tf_model.h5", "events.out.tfevents.1", "latest", "optimizer.pt", "state.unknown"):
            (folder / name).write_bytes(b"%d" % number)
    dimred.merge(tmp_path / "run", tmp_path / "out")
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {
        "README.md", "model.safetensors", "source.spm", "bpe.codes", "own.tokenizer", "fixed.pth",
        "additional_chat_templates/tool.jinja",
    }  # fmt: skip


@pytest.mark.parametrize("ending", ["", ".value", ":0"])
def test_the_statistics_of_flax_nnx_and_keras_are_known(tmp_path: Path, ending: str) -> None:
    pair = ("moving_mean", "moving_variance") if ending == ":0" else ("mean", "var")
    for number in (1, 2):
        statistics = {f"bn.{name}{ending}": np.full(3, number, np.float32) for name in pair}
        seeds = {"seed_generator/seed_generator_state": np.array([number, 2], np.int64)}
        write_file(tmp_path / f"n-{number}.safetensors", {"w": draw((3, 2), np.float32, number)} | statistics | seeds)
    assert open_checkpoints(tmp_path)[0].statistics == tuple(f"bn.{name}{ending}" for name in pair)
    dimred.merge(tmp_path, tmp_path / "out.safetensors")
    assert read_file(tmp_path / "out.safetensors")["seed_generator/seed_generator_state"].tolist() == [2, 2]


def test_converting_without_pytorch_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DimredError, match=r"needs PyTorch, .* pip install torch --index-url"):
        convert(tmp_path)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_files_of_pytorch_are_converted(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    net.add_module("tied", net[0])
    state, optimizer = net.state_dict(), torch.optim.Adam(net.parameters()).state_dict()
    mean = {name: tensor + 1 for name, tensor in state.items()}
    where = tmp_path / "run"
    where.mkdir()
    torch.save({"model": state, "ema": mean, "optimizer": optimizer, "at": Path("x")}, where / "nested.pt")
    torch.save({"state_dict": state, "current_model_state": mean}, where / "lightning.ckpt")
    torch.save(net, where / "module.pth")
    torch.jit.script(net).save(where / "script.pt")
    torch.save(optimizer, where / "optimizer.pt")
    conversions = {Path(one.source).stem: one for one in convert(where)}
    assert {name: (one.key, one.kind) for name, one in conversions.items()} == {
        "nested": ("model", "raw"), "lightning": ("current_model_state", "raw"), "module": ("", "raw"),
        "script": ("", "raw"),
    }  # fmt: skip
    for name, one in conversions.items():
        result, reference = load_file(one.out), mean if name == "lightning" else state
        assert result.keys() == reference.keys()
        assert all(torch.equal(result[key], reference[key]) for key in reference)
    assert ("0.weight", "tied.weight") in conversions["nested"].ties
    assert convert(where) == []
    with pytest.raises(DimredError, match="exists already; force=True replaces it"):
        convert(where / "nested.pt")
    assert convert(where / "nested.pt", key="ema", out=tmp_path / "ema.safetensors")[0].kind == "averaged"


@pytest.mark.parametrize("has_shards", [True, False])
def test_a_whole_file_beside_the_index_of_other_shards_leaves_no_choice_to_chance(
    tmp_path: Path, has_shards: bool
) -> None:
    """As when a network is saved again in the same folder, with larger shards; transformers loads the whole file."""
    tensors = write_run(tmp_path / "run", 2, sharded=True)
    for number, values in enumerate(tensors, start=1):
        folder = tmp_path / "run" / f"checkpoint-{number}000"
        for shard in folder.glob("*.safetensors") if not has_shards else ():
            shard.unlink()
        write_file(folder / "model.safetensors", values)
    with pytest.raises(CheckpointError, match=r"has model\.safetensors and also .* of shards: .*'(.*)'") as error:
        open_checkpoints(tmp_path / "run")
    assert len(open_checkpoints(str(error.value).split("'")[1])) == 2
    for index in tmp_path.rglob("*.index.json"):  # as MLX writes it
        names = dict.fromkeys(json.loads(index.read_text())["weight_map"], "model.safetensors")
        index.write_text(json.dumps({"weight_map": names}))
    assert [one.files[0].name for one in open_checkpoints(tmp_path / "run")] == 2 * ["model.safetensors"]


def test_a_glob_matches_what_is_hidden_only_where_it_has_a_dot(tmp_path: Path) -> None:
    for folder in (".home/run", ".home/run/.ipynb_checkpoints", ".home/run/.cache/old"):
        write_run(tmp_path / folder, 2)
    run = tmp_path / ".home" / "run"
    for pattern, n in (("*/*.safetensors", 2), ("**/model.safetensors", 2), (".cache/**/model.safetensors", 2)):
        paths = find_paths(f"{tmp_path}/.ho*/run/{pattern}")
        assert len(paths) == n, pattern
        assert all((".cache" in path.parts) == pattern.startswith(".cache") for path in paths)
    with pytest.raises(ConfigError, match="nothing matches it"):
        find_paths(f"{tmp_path}/*/run/*/model.safetensors")
    assert len(open_checkpoints(f"{run}/**/model.safetensors")) == 2


def test_a_folder_with_brackets_is_no_pattern(tmp_path: Path) -> None:
    for name in ("lr=[1]", "lr=1"):
        write_run(tmp_path / name, 2)
    for pattern in ("*", "checkpoint-[12]000"):
        assert {path.parent.name for path in find_paths(f"{tmp_path}/lr=[1]/{pattern}")} == {"lr=[1]"}


def test_an_earlier_result_that_a_glob_matches_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for number in (1, 2):
        write_file(tmp_path / f"net-{number}.safetensors", network(number))
    dimred.merge(f"{tmp_path}/net-[12].safetensors", tmp_path / "result-2.safetensors")
    assert not caplog.messages
    dimred.merge(f"{tmp_path}/*.safetensors", tmp_path / "all.safetensors", order="name")
    assert [message.partition(",")[0] for message in caplog.messages] == [
        f"{tmp_path / 'result-2.safetensors'} is the result of a merge"
    ]
    caplog.clear()
    results = [tmp_path / "all.safetensors", tmp_path / "result-2.safetensors"]
    dimred.merge(results, tmp_path / "of-results.safetensors", order="name")
    assert not caplog.messages


@pytest.mark.parametrize("content", ['{"name": "mine"}', "{}", "[]"])
def test_a_file_named_as_a_list_of_folders_that_lists_none_hides_no_weights(tmp_path: Path, content: str) -> None:
    for number in (1, 2):
        write_file(tmp_path / f"checkpoint-{number}" / "model.safetensors", network(number))
        (tmp_path / f"checkpoint-{number}" / "modules.json").write_text(content)
    assert [one.step for one in open_checkpoints(tmp_path)] == [1, 2]


@pytest.mark.parametrize("names", [("criterion", "encoder"), ("writer", "reader")])
def test_a_part_whose_name_holds_the_letters_of_iter_is_averaged(tmp_path: Path, names: tuple[str, str]) -> None:
    for number in (1, 2):
        for name in names:
            path = tmp_path / "run" / f"checkpoint-{number}" / name / "model.safetensors"
            write_file(path, {"linear.weight": np.full((2, 3), number, np.float32)})
    checkpoint = open_checkpoints(tmp_path / "run")[0]
    assert checkpoint.layout.names == tuple(f"{name}/linear.weight" for name in sorted(names))


def test_a_part_that_is_still_a_pickle_is_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / "run" / f"checkpoint-{number}"
        write_file(folder / "unet" / "model.safetensors", {"w": np.full((2, 3), number, np.float32)})
        (folder / "text_encoder").mkdir()
        (folder / "text_encoder" / "pytorch_model.bin").write_bytes(PICKLE)
    with pytest.raises(CheckpointError, match="is a pickle"):
        open_checkpoints(tmp_path / "run")


def test_weights_that_a_result_does_not_have_are_named_and_equal_files_are_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for number in (1, 2):
        folder = tmp_path / "run" / f"checkpoint-{number}"
        write_file(folder / "model.safetensors", network(number))
        write_file(folder / "projector" / "model.safetensors", network(number))
        for name, content in {"head.npz": f"{number}", "labels.jsonl": "{}", "eval_metrics.json": f"{number}"}.items():
            (folder / name).write_text(content)
        (folder / "config.json").write_text("{}")
    dimred.merge(tmp_path / "run", tmp_path / "mean")
    names = {path.name for path in (tmp_path / "mean").iterdir()}
    assert names == {"README.md", "config.json", "labels.jsonl", "model.safetensors"}
    said = [message for message in caplog.messages if "neither averaged nor copied" in message]
    assert [message.split()[0].rpartition("/")[2] for message in said] == ["head.npz", "projector"]


def test_rest_that_names_an_input_is_that_input(tmp_path: Path) -> None:
    for number in (1, 3):
        write_file(tmp_path / f"n-{number}.safetensors", network(number))
    for name, rest in (("one", None), ("two", tmp_path / "n-3.safetensors")):
        dimred.merge(sorted(tmp_path.glob("n-*.safetensors")), tmp_path / f"{name}.safetensors", rest=rest)
    one, two = (read_file(tmp_path / f"{name}.safetensors") for name in ("one", "two"))
    for key, value in one.items():
        np.testing.assert_array_equal(two[key], value)
