"""Checkpoints as users have them are found, ordered and compared."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.errors import CheckpointError, ConfigError, DimredError
from dimred.merging.inputs import label, open_checkpoints
from tests.helpers.checkpoint_files import BITS, INDEX, draw, network, write_file, write_run
from tests.helpers.planted import write_series


def write_named(folder: Path, *names: str) -> Path:
    for seed, name in enumerate(names):
        write_file(folder / name, network(seed))
    return folder


def steps(folder: Path, order: str = "step") -> list[tuple[str, int]]:
    return [(label(checkpoint), checkpoint.step) for checkpoint in open_checkpoints([folder], order)]


@pytest.mark.parametrize("sharded", [False, True])
def test_folders_as_trainers_leave_them(tmp_path: Path, sharded: bool) -> None:
    write_run(tmp_path, 11, sharded=sharded)
    write_file(tmp_path / "model.safetensors", network(99))  # the final one has no step
    (tmp_path / "runs-2026").mkdir()
    result = open_checkpoints([tmp_path])
    assert [one.step for one in result] == list(range(1000, 12000, 1000))
    assert label(result[-1]) == "checkpoint-11000"
    assert result[0].layout.names == ("conv.weight", "fc.weight")
    assert result[0].statistics == ("bn.running_mean", "bn.running_var")
    assert len(result[0].files) == (2 if sharded else 1)


@pytest.mark.parametrize(
    ("names", "answer"),
    [
        (("net-9.safetensors", "net-10.safetensors"), [9, 10]),
        (("epoch=2-step=30-val_loss=0.5.safetensors", "epoch=10-step=100-val_loss=0.1.safetensors"), [30, 100]),
        (("epoch3_acc81.safetensors", "epoch12_acc80.safetensors"), [3, 12]),
        (("v2-iter_00500.safetensors", "v2-iter_01000.safetensors"), [500, 1000]),
        (("resnet-1_625.safetensors", "resnet-2_1250.safetensors"), [625, 1250]),
        (("resnet-1_625.safetensors", "resnet-2_625.safetensors"), [625, 1250]),  # counted inside the epoch
        (tuple(f"net-{epoch}_{step}.safetensors" for epoch in (0, 1) for step in (50, 100)), [50, 100, 150, 200]),
    ],
)
def test_the_step_is_read_from_the_name(tmp_path: Path, names: tuple[str, ...], answer: list[int]) -> None:
    write_named(tmp_path, *names)
    assert steps(tmp_path) == list(zip(names, answer, strict=True))


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


def test_the_decimals_of_a_loss_are_no_step(tmp_path: Path) -> None:
    write_named(tmp_path, "weights.01-0.52.safetensors", "weights.02-0.45.safetensors")
    with pytest.raises(ConfigError, match="2 numbers vary in the names"):
        open_checkpoints([tmp_path])


def test_pickles_that_were_converted_or_hold_no_weights_are_passed_over(tmp_path: Path) -> None:
    for epoch in (1, 2):
        write_named(tmp_path / "converted", f"epoch={epoch}.safetensors")
        (tmp_path / "converted" / f"epoch={epoch}.ckpt").write_bytes(b"PK\x03\x04")
    result = steps(tmp_path / "converted")
    assert result == [("epoch=1.safetensors", 1), ("epoch=2.safetensors", 2)]
    (tmp_path / "trainer").mkdir()
    for name in ("optimizer.pt", "pytorch_model.bin", "training_args.bin"):
        (tmp_path / "trainer" / name).write_bytes(b"PK\x03\x04")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle"):
        open_checkpoints([tmp_path / "trainer"])


@pytest.mark.parametrize("name", ["plain.pt", "it's.pt", 'a"b $HOME `id`.pt', "ä.pt"])
def test_the_command_that_converts_a_pickle_names_its_path_in_any_shell(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    with pytest.raises(CheckpointError, match="call: ") as error:
        open_checkpoints([tmp_path / name])
    command = shlex.split(str(error.value).partition("call: ")[2])
    assert command == ["dimred", "convert", str(tmp_path / name)]


def test_no_checkpoints_at_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CHECKPOINTS is empty; give a folder"):
        dimred.merge([], tmp_path / "x.safetensors")


def test_results_among_the_checkpoints_are_not_taken_for_some_of_them(tmp_path: Path) -> None:
    write_named(tmp_path, "n-1.safetensors", "n-2.safetensors")
    dimred.merge(tmp_path, tmp_path / "n-3.safetensors")
    write_file(tmp_path / "best-4.safetensors.merge" / "candidate.safetensors", network(4))  # a search was killed
    (tmp_path / "n-1.safetensors.json").write_text("[]")  # something else of the user's
    assert steps(tmp_path) == [("n-1.safetensors", 1), ("n-2.safetensors", 2)]
    assert len(open_checkpoints(sorted(tmp_path.glob("*.safetensors")))) == 3


def test_globs_lists_and_indices_name_the_same_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, 4, sharded=True)
    monkeypatch.chdir(tmp_path)
    for argument in (
        [f"{tmp_path}/checkpoint-[234]000"],
        [tmp_path / f"checkpoint-{number}000" for number in (4, 2, 3)],
        ["checkpoint-[234]*"],
        [f"{tmp_path}/*-[234]000/{INDEX}"],
    ):
        result = open_checkpoints(argument)
        assert [one.step for one in result] == [2000, 3000, 4000]
        assert [*map(label, result)] == ["checkpoint-2000", "checkpoint-3000", "checkpoint-4000"]


def test_a_series_has_the_steps_of_its_manifest(tmp_path: Path) -> None:
    write_series(tmp_path, np.random.default_rng(0).standard_normal((3, 30)).astype(np.float32), first_step=7)
    assert [one.step for one in open_checkpoints([tmp_path])] == [7, 8, 9]


def other(name: str, value: np.ndarray | None) -> dict[str, np.ndarray]:
    return {key: array for key, array in (network(5) | {name: value}).items() if array is not None}


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (other("fc.weight", None), "'fc.weight' is in {last} and not in {first}"),
        (other("fc.bias", draw((3,), np.float32, 1)), "'fc.bias' is in {first} and not in {last}"),
        (
            other("conv.weight", draw((7, 3, 1), np.float32, 1)),
            "'conv.weight' has the shape (7, 3, 1) in {first} and (7, 3, 3) in {last}",
        ),
        (
            other("fc.weight", draw((210, 1000), BITS, 1)),
            "'fc.weight' has the dtype bfloat16 in {first} and float32 in {last}",
        ),
        (other("bn.running_mean", None), "'bn.running_mean' is in {last} and not in {first}"),
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
    (folder / "checkpoint-10").mkdir(parents=True)
    (folder / "checkpoint-10" / "pytorch_model.bin").write_bytes(b"PK\x03\x04")


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
        (lambda folder: None, "a folder without a .safetensors or .ckpt file"),
        (lambda folder: write_run(folder, 1), "is one checkpoint; give two or more"),
        (only_counters, "has no trainable weights"),
        (shards(cut_the_last_shard), "model-00002-of-00002.safetensors is not a whole safetensors file"),
        (shards(lambda folder: next(folder.glob("*1-of*")).unlink()), "00001-of-00002.safetensors, which is not there"),
        (shards(lead_outside), "names no file beside it"),
        (lambda folder: write_named(folder, "m-00001-of-00002.safetensors"), "is one of several shards"),
        (lambda folder: write_named(folder / "at-1", "a.safetensors", "b.safetensors"), "at-1/*.safetensors"),
        (damaged_ckpt, "is damaged: its checksum does not match"),
        (only_pickles, "is a pickle, which could run any code; where PyTorch is installed, call: dimred convert"),
    ],
)
def test_unusable_checkpoints_are_refused(tmp_path: Path, make, words: str) -> None:
    make(tmp_path)
    with pytest.raises(DimredError) as error:
        open_checkpoints([tmp_path])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone-*", "no such file or folder, and nothing matches it"),
        ("gone**", "no such file or folder, and nothing matches it"),
        ("n" * 300, "n can't be read: File name too long."),
    ],
)
def test_a_path_without_checkpoints_is_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(DimredError) as error:
        open_checkpoints(tmp_path / name)
    assert words in str(error.value)


@pytest.mark.parametrize("order", ["step", "name"])
@pytest.mark.parametrize("link", ["net-3.safetensors", "last.safetensors"])
def test_a_link_is_no_further_checkpoint(
    tmp_path: Path, order: str, link: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_named(tmp_path, "net-1.safetensors", "net-2.safetensors")
    (tmp_path / link).symlink_to("net-2.safetensors")
    (tmp_path / "also").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    mean = [("net-1.safetensors", 1), ("net-2.safetensors", 2)]
    assert steps(tmp_path, order) == mean
    assert f"{link} is another name of {tmp_path}/net-2.safetensors" in caplog.text
    sources = [f"{tmp_path}/*.safetensors", f"{tmp_path}/also/net-1.safetensors"]
    assert [(label(one), one.step) for one in open_checkpoints(sources, order)] == mean
    assert dimred.CheckpointSeries.open(tmp_path, order).steps == [1, 2]


def test_a_name_as_of_a_copy_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    write_named(tmp_path, "net-1.safetensors", "net-2.safetensors", "net-3-final.safetensors")
    assert [step for _, step in steps(tmp_path)] == [1, 2]
    assert caplog.messages == [f"{tmp_path}/net-3-final.safetensors is named as a copy of another, and is passed over"]
    with pytest.raises(ConfigError, match=r"'net-3-final' is not named like the others \(.*leave out what is not"):
        open_checkpoints(f"{tmp_path}/*.safetensors")


def test_the_numbered_name_of_a_checkpoint_is_kept_where_it_is_the_link(tmp_path: Path) -> None:
    write_named(tmp_path, "net-1.safetensors", "last.safetensors")
    (tmp_path / "net-2.safetensors").symlink_to("last.safetensors")
    assert steps(tmp_path) == [("net-1.safetensors", 1), ("net-2.safetensors", 2)]


def test_what_is_taken_for_a_copy_of_the_weights_is_not_left_out_of_the_mean_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a moving average, or as here a layer of the network that repeats another one's names and shapes."""
    caplog.set_level("INFO")
    for step in (1, 2):
        layer = {"fc.weight": np.full((4, 4), step, np.float32), "fc.bias": np.full(4, step, np.float32)}
        write_file(tmp_path / f"net-{step}.safetensors", layer | {f"head.{name}": layer[name] for name in layer})
    dimred.merge(tmp_path, tmp_path / "mean.safetensors")
    assert (
        f"copied from {tmp_path}/net-2.safetensors and not averaged: 2 of its arrays, such as 'head.fc." in caplog.text
    )
    caplog.clear()
    (tmp_path / "plain").mkdir()
    dimred.merge(write_named(tmp_path / "plain", "net-1.safetensors", "net-2.safetensors"), tmp_path / "b.safetensors")
    assert "not averaged" not in caplog.text
