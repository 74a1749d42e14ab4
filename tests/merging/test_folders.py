"""Folders as trainers leave them: series, copies, links, pickles, and what a network needs beside its weights."""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.errors import CheckpointError, ConfigError
from dimred.merging.inputs import find_paths, open_checkpoints
from tests.helpers.checkpoint_files import network, read_file, write_file, write_run
from tests.merging.test_inputs import steps, write_named

PICKLE = b"PK\x03\x04"


@pytest.mark.parametrize(
    ("names", "others"),
    [
        (("net18-1_50", "net18-2_50"), ("net18_best", "optim_net18")),  # as mindcv leaves them
        (("epoch=1-step=50", "epoch=2-step=100"), ("last",)),  # Lightning
        (("n-50", "n-100"), ("n-final", "last-v1")),
    ],
)
def test_files_that_differ_in_numbers_alone_are_the_series_and_others_are_told(
    tmp_path: Path, names: tuple[str, ...], others: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_named(tmp_path, *(f"{name}.safetensors" for name in (*names, *others)))
    assert [step for _, step in steps(tmp_path)] == [50, 100]
    lines = [f"{tmp_path}/{name}.safetensors is not named like the other checkpoints, and is passed" for name in others]
    assert all(line in caplog.text for line in lines)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ("best", "last"),
            "which has no checkpoints whose names differ only in numbers; .*'.*/best.safetensors'.*order='name'",
        ),
        (
            ("n-1", "n-2", "last-v1", "last-v2"),
            r"several series .* give the ones you mean, '.*/last-v\*.*/n-\*",
        ),
        (("n-1", "n-2", "old_1/model", "old_2/model"), r"several series .*'.*/n-\*.safetensors' or '.*/old_\*'$"),
    ],
)
def test_two_series_or_none_are_refused_and_the_globs_are_named(tmp_path: Path, names, words) -> None:
    write_named(tmp_path, *(f"{name}.safetensors" for name in names))
    with pytest.raises(ConfigError, match=words):
        open_checkpoints(tmp_path)
    glob = str(tmp_path / ("n-*.safetensors" if "n-1" in names else "*.safetensors"))
    assert len(open_checkpoints(glob, "step" if "n-1" in names else "name")) == 2


@pytest.mark.parametrize(
    ("names", "unplaced"),
    [
        (("model-500k", "model-750k", "model-1M"), "model-1M"),
        (("model-500k", "model-750k", "model-1.5M"), "model-1.5M"),
        (("n-50", "n-100", "n-120-final"), "n-120-final"),
        (("net-1_50", "net-1_100", "net-2_50_breakpoint"), "net-2_50_breakpoint"),
        (("epoch=10-step=5", "epoch=10-step=6", "epoch=11-step=7-v1"), "epoch=11-step=7-v1"),
        (("checkpoint-10/model", "checkpoint-20/model", "checkpoint-30-merged/model"), "checkpoint-30-merged"),
    ],
)
def test_a_checkpoint_that_has_no_place_in_the_series_is_refused(tmp_path: Path, names: tuple, unplaced: str) -> None:
    """It may be the newest of all."""
    write_named(tmp_path, *(f"{name}.safetensors" for name in names))
    with pytest.raises(ConfigError, match=rf"where '{unplaced}' belongs among .*order='name' or order='mtime'"):
        open_checkpoints(tmp_path)
    assert len(open_checkpoints(tmp_path, "name")) == 3


def test_with_another_order_all_checkpoints_of_a_folder_count_and_must_be_of_one_kind(tmp_path: Path) -> None:
    write_named(tmp_path, "n-1.safetensors", "n-2.safetensors", "best.safetensors")
    assert [name for name, _ in steps(tmp_path, "name")] == ["best.safetensors", "n-1.safetensors", "n-2.safetensors"]
    write_named(tmp_path / "checkpoint-3", "model.safetensors")
    with pytest.raises(ConfigError, match=r"give the ones you mean, '.*/best.safetensors' or '.*/checkpoint-\*'"):
        open_checkpoints(tmp_path, "name")


def test_pickles_of_a_series_are_refused_and_others_passed_over(tmp_path: Path) -> None:
    write_named(tmp_path, "epoch_1.safetensors", "epoch_2.safetensors")
    for name in ("vocabulary.pkl", "optimizer.pt", "epoch_1.ckpt"):  # the last one is converted already
        (tmp_path / name).write_bytes(PICKLE)
    assert len(open_checkpoints(tmp_path)) == 2
    (tmp_path / "epoch_3.pt").write_bytes(PICKLE)
    with pytest.raises(CheckpointError, match=r"epoch_3\.pt is a pickle, which could run any code") as error:
        open_checkpoints(tmp_path)
    command = shlex.split(str(error.value).partition("installed: ")[2])
    assert command == ["dimred", "convert", str(tmp_path / "epoch_3.pt")]


def test_folders_of_pickles_are_refused_and_their_files_named(tmp_path: Path) -> None:
    write_run(tmp_path, 2)
    for name in ("it's.bin", "optimizer.bin"):
        (tmp_path / "checkpoint-3000").mkdir(exist_ok=True)
        (tmp_path / "checkpoint-3000" / name).write_bytes(PICKLE)
    with pytest.raises(CheckpointError, match=r"it's\.bin, .*optimizer\.bin are pickles") as error:
        open_checkpoints(tmp_path)
    command = shlex.split(str(error.value).partition("installed: ")[2])
    assert command == ["dimred", "convert", str(tmp_path / "checkpoint-3000" / "it's.bin")]
    assert len(open_checkpoints(tmp_path, to_step=2000)) == 2


def test_other_names_of_a_checkpoint_count_once_and_a_broken_link_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = tmp_path / "run"
    write_named(run, "n-1.safetensors", "n-2.safetensors", "n-3.safetensors")
    (run / "last.safetensors").symlink_to("n-3.safetensors")
    os.link(run / "n-2.safetensors", run / "best.safetensors")
    (tmp_path / "also").symlink_to(run)
    (run / "loop").symlink_to(run / "loop")
    answer = [("n-1.safetensors", 1), ("n-2.safetensors", 2), ("n-3.safetensors", 3)]
    assert steps(run) == steps(run, "name") == answer
    for name, other in (("last", "n-3"), ("best", "n-2")):
        assert f"{run}/{name}.safetensors is another name for {run}/{other}.safetensors" in caplog.text
    files = [
        f"{run}/*.safetensors",
        f"{tmp_path}/also/n-1.safetensors",
        f"{tmp_path}/../{tmp_path.name}/run/n-1.safetensors",
    ]
    assert [one.step for one in open_checkpoints(files)] == [1, 2, 3]
    (run / "n-4.safetensors").symlink_to("gone.safetensors")
    with pytest.raises(CheckpointError, match=r"n-4\.safetensors does not exist"):
        open_checkpoints(run)


@pytest.mark.parametrize("link", [os.link, os.symlink], ids=["hard", "symbolic"])
@pytest.mark.parametrize("is_folder", [False, True], ids=["files", "folders"])
def test_checkpoints_with_equal_bytes_behind_one_link_count_each(tmp_path: Path, link: Callable, is_folder) -> None:
    """As a cache of downloads or a store of data keeps them: once, under the digest of their bytes."""
    store, run = tmp_path / "store", tmp_path / "run"
    run.mkdir()
    for number, value in ((1, 0.0), (2, 3.0), (3, 3.0), (4, 3.0)):
        blob = write_file(store / f"{value}.safetensors", {"w": np.full((2, 2), value, np.float32)})
        target = run / f"step-{number}.safetensors"
        if is_folder:
            target = run / f"checkpoint-{number}" / "model.safetensors"
            target.parent.mkdir()
        link(blob, target)
    dimred.merge(run, tmp_path / "mean.safetensors")
    assert (read_file(tmp_path / "mean.safetensors")["w"] == 2.25).all()
    record = dimred.merge(run, tmp_path / "rest.safetensors", rest=sorted(run.iterdir())[2])
    assert record["all_else_from"] == str(sorted(run.iterdir())[2])


def test_a_file_system_may_give_all_files_one_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some that are mounted over a network do; whether a file has several names is told by their count."""
    write_named(tmp_path, "a.safetensors", "b.safetensors", "c.safetensors")
    (tmp_path / "d.safetensors").symlink_to("c.safetensors")
    stat_here = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        found = stat_here(path, follow_symlinks=follow_symlinks)
        return os.stat_result((found.st_mode, 1, *found[2:10]), {"st_mtime_ns": found.st_mtime_ns})

    monkeypatch.setattr(Path, "stat", stat)
    assert [name for name, _ in steps(tmp_path, "name")] == ["a.safetensors", "b.safetensors", "c.safetensors"]


def test_parts_of_a_pipeline_are_averaged_one_at_a_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for number in (1, 2):
        for part in ("unet", "vae"):
            arrays = {"w": np.full((2, 3), number, np.float32)}
            write_file(tmp_path / "run" / f"checkpoint-{number}" / part / "model.safetensors", arrays)
    with pytest.raises(ConfigError, match=r"which has no \.safetensors or \.ckpt file"):
        open_checkpoints(tmp_path / "run")
    dimred.merge(f"{tmp_path}/run/*/unet", tmp_path / "unet")
    assert read_file(tmp_path / "unet" / "model.safetensors")["w"].tolist() == [[1.5] * 3] * 2
    for number in (1, 2):
        write_file(tmp_path / "run" / f"checkpoint-{number}" / "model.safetensors", network(number))
    dimred.merge(tmp_path / "run", tmp_path / "whole")
    assert f"{tmp_path}/run/checkpoint-2/vae is neither averaged nor copied, because it has" in caplog.text


def test_all_that_is_no_weight_is_copied_beside_the_result(tmp_path: Path) -> None:
    config = b'{\r\n"torch_dtype": "bfloat16", "author": "Jos\xe9"\r\n}'
    for number in (1, 2):
        folder = tmp_path / "run" / f"checkpoint-{number}"
        write_file(folder / "model.safetensors", {"w": np.full((3, 2), number, np.float32)})
        (folder / "templates").mkdir()
        (folder / "config.json").write_bytes(config)
        for name in ("source.spm", "bpe.codes", "modeling_own.py", "templates/tool.jinja", "vocabulary.index.json"):
            (folder / name).write_bytes(b"%d" % number)
        for name in ("tf_model.h5", "optimizer.pt", "fixed.pth", "head.npz", "trainer_state.json", ".hidden"):
            (folder / name).write_bytes(b"%d" % number)
        for name in ("pytorch_model.bin.index.json", "tf_model.h5.index.json"):
            (folder / name).write_text("{}")
    dimred.merge(tmp_path / "run", tmp_path / "out", dtype="float16")
    files = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert files == {
        "README.md",
        "model.safetensors",
        "config.json",
        "source.spm",
        "bpe.codes",
        "modeling_own.py",
        "templates/tool.jinja",
        "vocabulary.index.json",
    }
    assert (tmp_path / "out" / "config.json").read_bytes() == config.replace(b"bfloat16", b"float16")
    assert (tmp_path / "out" / "source.spm").read_bytes() == b"2"


@pytest.mark.parametrize("dtype", ["float32", None])
def test_a_configuration_names_the_type_of_the_new_weights(tmp_path: Path, dtype: str | None) -> None:
    """Hugging Face's libraries load them in the type that it names, and would round them to the old one."""
    config = {"dtype": "float16", "vision_config": {"torch_dtype": "float16"}, "compute_dtype": "float16", "n": "dtype"}
    for number in (1, 2):
        folder = tmp_path / "run" / f"checkpoint-{number}"
        write_file(folder / "model.safetensors", {"w": np.full((3, 2), number, np.float16)})
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "other.json").write_text(json.dumps(config))
    dimred.merge(tmp_path / "run", tmp_path / "out", dtype=dtype)
    named = dtype or "float16"
    expected = config | {"dtype": named, "vision_config": {"torch_dtype": named}}
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == expected
    assert json.loads((tmp_path / "out" / "other.json").read_text()) == config
    assert read_file(tmp_path / "out" / "model.safetensors")["w"].dtype == named


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


def test_rest_that_names_an_input_is_that_input(tmp_path: Path) -> None:
    write_named(tmp_path, "n-1.safetensors", "n-3.safetensors")
    for name, rest in (("one", None), ("two", tmp_path / "n-3.safetensors")):
        dimred.merge(sorted(tmp_path.glob("n-*.safetensors")), tmp_path / f"{name}.safetensors", rest=rest)
    one, two = (read_file(tmp_path / f"{name}.safetensors") for name in ("one", "two"))
    for key, value in one.items():
        np.testing.assert_array_equal(two[key], value)
