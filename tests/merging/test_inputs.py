"""Checkpoints as users have them are found, ordered and compared."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.errors import CheckpointError, ConfigError, DimredError
from dimred.merging.inputs import open_checkpoints
from tests.helpers.checkpoint_files import BITS, INDEX, draw, network, write_file, write_run
from tests.helpers.planted import write_series


def write_named(folder: Path, *names: str) -> Path:
    for seed, name in enumerate(names):
        write_file(folder / name, network(seed))
    return folder


def steps(folder: Path, order: str = "step") -> list[tuple[str, int]]:
    return [(checkpoint.path.name, checkpoint.step) for checkpoint in open_checkpoints([folder], order)]


@pytest.mark.parametrize("sharded", [False, True])
def test_folders_as_trainers_leave_them(tmp_path: Path, sharded: bool) -> None:
    write_run(tmp_path, 11, sharded=sharded)
    write_file(tmp_path / "model.safetensors", network(99))  # the final one has no step
    (tmp_path / "runs-2026").mkdir()
    result = open_checkpoints([tmp_path])
    assert [one.step for one in result] == list(range(1000, 12000, 1000))
    assert result[-1].path.name == "checkpoint-11000"
    assert result[0].layout.names == ("conv.weight", "fc.weight")
    assert result[0].statistics == ("bn.running_mean", "bn.running_var")
    assert len(result[0].files) == (2 if sharded else 1)


def test_checkpoints_can_be_ordered_by_name_or_time(tmp_path: Path) -> None:
    write_named(tmp_path, "b.safetensors", "a.safetensors", "c.safetensors")
    for number, name in enumerate(("c", "a", "b")):
        os.utime(tmp_path / f"{name}.safetensors", (number, number))
    assert steps(tmp_path, "name") == [("a.safetensors", 1), ("b.safetensors", 2), ("c.safetensors", 3)]
    assert steps(tmp_path, "mtime") == [("c.safetensors", 1), ("a.safetensors", 2), ("b.safetensors", 3)]
    with pytest.raises(ConfigError, match="use order='name' or order='mtime'"):
        open_checkpoints([tmp_path])
    with pytest.raises(ConfigError, match="order is 'time'; allowed: step, name, mtime"):
        open_checkpoints([tmp_path], "time")


def test_results_among_the_checkpoints_are_not_taken_for_some_of_them(tmp_path: Path) -> None:
    write_named(tmp_path, "n-1.safetensors", "n-2.safetensors")
    dimred.merge(tmp_path, tmp_path / "n-3.safetensors")
    write_file(tmp_path / "best-4.safetensors.merge" / "candidate.safetensors", network(4))  # a search was killed
    (tmp_path / "n-1.safetensors.json").write_text("[]")  # something else of the user's
    assert steps(tmp_path) == [("n-1.safetensors", 1), ("n-2.safetensors", 2)]
    assert len(open_checkpoints(sorted(tmp_path.glob("*.safetensors")))) == 3


def test_a_record_of_an_unknown_version_is_refused_by_name(tmp_path: Path) -> None:
    write_named(tmp_path / "run", "n-1.safetensors", "n-2.safetensors")
    out = tmp_path / "run" / "n-3.safetensors"
    dimred.merge(tmp_path / "run", out)
    record = Path(f"{out}.json")
    record.write_text(record.read_text().replace('"version": 1', '"version": 2'))
    words = r"n-3\.safetensors\.json should be a merge's record, but can't be used: it has version 2 of its format, and"
    with pytest.raises(ConfigError, match=words):
        open_checkpoints(tmp_path / "run")
    out.unlink()  # as after a call that was killed before its result had its name
    with pytest.raises(ConfigError, match=words):
        dimred.merge(f"{tmp_path}/run/n-[12].safetensors", out)


def test_globs_and_lists_name_the_same_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, 4, sharded=True)
    monkeypatch.chdir(tmp_path)
    for argument in (
        [f"{tmp_path}/checkpoint-[234]000"],
        [tmp_path / f"checkpoint-{number}000" for number in (4, 2, 3)],
        ["checkpoint-[234]*"],
    ):
        result = open_checkpoints(argument)
        assert [one.step for one in result] == [2000, 3000, 4000]
        assert [one.path.name for one in result] == ["checkpoint-2000", "checkpoint-3000", "checkpoint-4000"]


def test_a_series_has_the_steps_of_its_manifest(tmp_path: Path) -> None:
    write_series(tmp_path, np.random.default_rng(0).standard_normal((3, 30)).astype(np.float32), first_step=7)
    assert [one.step for one in open_checkpoints([tmp_path])] == [7, 8, 9]


def other(name: str, value: np.ndarray | None) -> dict[str, np.ndarray]:
    return {key: array for key, array in (network(5) | {name: value}).items() if array is not None}


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (other("fc.weight", None), "'fc.weight' is in {last}, but not in {first}"),
        (other("fc.bias", draw((3,), np.float32, 1)), "'fc.bias' is in {first}, but not in {last}"),
        (
            other("conv.weight", draw((7, 3, 1), np.float32, 1)),
            "'conv.weight' has the shape (7, 3, 1) in {first} and (7, 3, 3) in {last}",
        ),
        (
            other("fc.weight", draw((210, 1000), BITS, 1)),
            "'fc.weight' has the dtype bfloat16 in {first} and float32 in {last}",
        ),
        (other("bn.running_mean", None), "'bn.running_mean' is in {last}, but not in {first}"),
    ],
)
def test_checkpoints_of_two_networks_are_refused(tmp_path: Path, second: dict[str, np.ndarray], words: str) -> None:
    last, first = (write_file(tmp_path / f"n-{number}.safetensors", second) for number in (2, 1))
    write_file(last, network(6))
    with pytest.raises(CheckpointError) as error:
        open_checkpoints([tmp_path])
    assert words.format(first=first, last=last) in str(error.value)
    assert "\n" not in str(error.value)


def shards(change: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return a function that writes two sharded checkpoints, and changes the folder of the first."""
    return lambda folder: (write_run(folder, 2, sharded=True), change(folder / "checkpoint-1000"))


def cut_the_last_shard(folder: Path) -> None:
    shard = folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])


def lead_outside(folder: Path) -> None:
    index = folder / INDEX
    index.write_text(index.read_text().replace("model-00001", "../model-00001"))


def only_pickles(folder: Path) -> None:
    for epoch in (1, 2):
        (folder / f"n-{epoch}.pt").write_bytes(b"PK\x03\x04")


def only_counters(folder: Path) -> None:
    for number in (1, 2):
        write_file(folder / f"n-{number}.safetensors", {"step": np.array(number)})


def damaged_ckpt(folder: Path) -> None:
    for number in (1, 2):
        write_checkpoint(folder / f"n-{number}.ckpt", {"w": draw((300,), np.float32, number)})
    content = bytearray((folder / "n-1.ckpt").read_bytes())
    content[200] ^= 1
    (folder / "n-1.ckpt").write_bytes(content)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, "which has no .safetensors or .ckpt file"),
        (lambda folder: write_run(folder, 1), "is one checkpoint; give two or more"),
        (only_counters, "has no trainable weights"),
        (shards(cut_the_last_shard), "model-00002-of-00002.safetensors is not a whole safetensors file"),
        (shards(lambda folder: next(folder.glob("*1-of*")).unlink()), "00001-of-00002.safetensors, which is missing"),
        (shards(lead_outside), "names no file beside it"),
        (
            lambda folder: write_named(folder, "m-00001-of-00002.safetensors"),
            "is one of several shards, or their index",
        ),
        (lambda folder: write_named(folder / "at-1", "a.safetensors", "b.safetensors"), "at-1/*.safetensors"),
        (damaged_ckpt, "is damaged: its checksum does not match"),
        (only_pickles, "are pickles, which could run any code; give the other checkpoints themselves, or convert"),
    ],
)
def test_unusable_checkpoints_are_refused(tmp_path: Path, make, words: str) -> None:
    make(tmp_path)
    with pytest.raises(DimredError) as error:
        open_checkpoints([tmp_path])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_paths_without_checkpoints_are_refused(tmp_path: Path) -> None:
    nothing = "no such file or folder, and nothing matches it"
    for sources, words in (
        ([], "CHECKPOINTS is empty; give a folder"),
        ([tmp_path / "gone-*"], nothing),
        ([tmp_path / "gone**"], nothing),
        ([tmp_path / ("n" * 300)], "n can't be read: File name too long."),
        ([write_run(tmp_path, 1, sharded=True) and tmp_path / "checkpoint-1000" / INDEX], "or their index; give their"),
    ):
        with pytest.raises(DimredError, match=words):
            open_checkpoints(sources)
