import os

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import CheckpointError, ConfigError, SeriesError
from dimred.io.checksums import read_checksummed, write_checksummed
from dimred.io.file_format import SERIES
from tests.helpers.processes import slow_writer


def weights(value: float) -> dict[str, np.ndarray]:
    return {"a": np.full((2, 3), value, np.float32), "b": np.full(4, value, np.float32)}


def fill(directory, steps, keep=3, format="ckpt", **options):
    series = CheckpointSeries.resume(directory, keep, prefix="resnet", format=format)
    for step in steps:
        series.append(weights(step), step=step, epoch=step, **options)
    return series


def test_the_newest_snapshots_stay_and_the_manifest_says_which(tmp_path):
    fill(tmp_path / "s", np.arange(1, 3))
    fill(tmp_path / "s", range(3, 6))  # taken up where it ended
    series = CheckpointSeries.open(tmp_path / "s")
    assert [entry.step for entry in series.entries] == [3, 4, 5]
    assert [path.name for path in series.paths] == ["resnet-3_3.ckpt", "resnet-4_4.ckpt", "resnet-5_5.ckpt"]
    names = sorted(path.name for path in (tmp_path / "s").iterdir())
    assert names == ["manifest.json", *(path.name for path in series.paths)]
    assert series.layout == WeightLayout.from_weights(weights(0))
    assert read_checkpoint(series.paths[0])["a"][0, 0] == 3
    assert [entry.bytes for entry in series.entries] == [path.stat().st_size for path in series.paths]


def test_an_old_snapshot_that_can_not_be_removed_does_not_end_the_run(tmp_path):
    """This happens on a network disk; here a folder replaces the file."""
    series = fill(tmp_path, [1, 2, 3])
    oldest = series.paths[0]
    oldest.unlink()
    oldest.mkdir()
    series.append(weights(4), step=4, epoch=4)
    assert [entry.step for entry in CheckpointSeries.open(tmp_path).entries] == [2, 3, 4]


def test_bfloat16_is_appended_as_float32(tmp_path):
    values = np.array([1.5, -0.25, 3e38], np.float32)
    parameter = Parameter(Tensor(values, ms.bfloat16), name="w")
    path = CheckpointSeries.create(tmp_path).append({"w": parameter}, step=1, epoch=1)
    values_read = read_checkpoint(path)["w"]
    assert values_read.dtype == np.float32
    np.testing.assert_allclose(values_read, values, rtol=2**-8)


def test_another_format_goes_on_with_the_series_and_rewinds_both(tmp_path):
    fill(tmp_path, [1, 2])
    series = fill(tmp_path, [3, 4], keep=None, format="safetensors")
    names = ["resnet-1_1.ckpt", "resnet-2_2.ckpt", "resnet-3_3.safetensors", "resnet-4_4.safetensors"]
    assert [path.name for path in CheckpointSeries.open(tmp_path).paths] == names
    assert list(read_checkpoint(series.paths[2])) == ["a", "b"]
    assert read_checkpoint(series.paths[2])["a"][0, 0] == 3
    CheckpointSeries.resume(tmp_path, prefix="resnet").rewind(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", names[0]]


def test_rewind_forgets_what_came_after(tmp_path):
    series = fill(tmp_path, [1, 2, 3])
    series.rewind(1)
    series.append(weights(20), step=2, epoch=2)
    assert [entry.step for entry in CheckpointSeries.open(tmp_path).entries] == [1, 2]
    assert read_checkpoint(series.paths[1])["a"][0, 0] == 20
    assert not (tmp_path / "resnet-3_3.ckpt").exists()


NOT_WHOLE = "it must be a whole number of at least 0"


@pytest.mark.parametrize(
    ("tensors", "place", "error", "words"),
    [
        ([np.ones(2)], (3, 3), ConfigError, r"weights is \[array\(.*; it must be a mapping: name -> array"),
        ({"w": [1, 2]}, (3, 3), ConfigError, r"'w' as \[1, 2\]; give an array, tensor or parameter of floats"),
        ({"w": "text"}, (3, 3), ConfigError, "'w' as 'text'"),
        ({"v": np.ones(2), "w": np.array([1, np.nan])}, (3, 3), CheckpointError, "'w' with numbers that are not"),
        ({"w": np.array([np.inf])}, (3, 3), CheckpointError, "the training diverged"),
        ({"w": np.array([1e300])}, (3, 3), CheckpointError, "the training diverged"),  # no float32
        (weights(1), (2, 9), SeriesError, r"up to step 2.*rewind\(1\)"),
        ({"a": np.ones((2, 3)), "c": np.ones(4)}, (3, 3), SeriesError, "parameter 1 is 'b'"),
        ({"b": np.ones(4), "a": np.ones((2, 3))}, (3, 3), SeriesError, "the order differs"),
        (
            {"a": np.ones((3, 2)), "b": np.ones(4)},
            (3, 3),
            SeriesError,
            r"\(2, 3\) in the snapshots and is 'a' \(3, 2\) in",
        ),
        (weights(3), (3, 2, 2), SeriesError, r"resnet-2_2\.ckpt is a snapshot already"),
        *(
            (weights(3), place, ConfigError, NOT_WHOLE)
            for place in [(3.0, 1), (True, 1), ("3", 1), (-1, 1), (3, 1.5), (3, 3, -1), (3, 3, "a/b")]
        ),
    ],
)
def test_what_does_not_continue_a_series_is_refused_and_nothing_changes(tmp_path, tensors, place, error, words):
    series = fill(tmp_path, [1, 2])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(error, match=words):
        series.append(tensors, *place[:2], step_in_epoch=place[2] if len(place) > 2 else None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_wrong_arguments_are_refused(tmp_path):
    for arguments, words in (
        *(({"keep": keep}, rf"keep is {keep}; .*None keeps all snapshots") for keep in (0, -1, 1.5, True)),
        *(({"prefix": prefix}, f"prefix is {prefix!r}") for prefix in ("", "a/b")),
        ({"format": "npz"}, "format is 'npz'; allowed: ckpt, safetensors"),
        ({"directory": [tmp_path]}, r"directory is \[.*; it must be the path of a folder"),
        ({"directory": __file__}, r"test_series\.py', which is a file; name a folder"),
    ):
        with pytest.raises(ConfigError, match=words):
            CheckpointSeries.create(**{"directory": tmp_path} | arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_series_that_was_opened_or_selected_does_not_write(tmp_path):
    writer = fill(tmp_path, [1])
    for series in (CheckpointSeries.open(tmp_path), writer.select(last=1)):
        assert type(series) is CheckpointSeries
        assert not hasattr(series, "append")


def test_snapshots_that_no_manifest_lists_are_not_removed(tmp_path):
    """A user who removed a damaged manifest, as its error suggests, and resumes the run does not lose the snapshots."""
    fill(tmp_path, [1, 2, 3])
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(SeriesError, match=r"has snapshots, but no manifest\.json that lists them; restore it"):
        CheckpointSeries.resume(tmp_path, prefix="resnet")
    assert len(CheckpointSeries.open(tmp_path)) == 3


def test_the_last_ones_up_to_an_epoch_are_selected(tmp_path):
    series = fill(tmp_path, range(1, 11), keep=None)
    assert series.select().entries == series.entries
    assert [entry.step for entry in series.select(last=3).entries] == [8, 9, 10]
    until = series.entries[5].epoch
    early = [entry.step for entry in series.entries if entry.epoch <= until]
    assert [entry.step for entry in series.select(last=3, until_epoch=until).entries] == early[-3:]
    with pytest.raises(SeriesError, match="has no snapshots up to epoch 0"):
        series.select(until_epoch=0)
    with pytest.raises(ConfigError, match="last is 0"):
        series.select(last=0)


def test_a_folder_without_manifest_is_ordered_by_name_never_by_time(tmp_path):
    for number, (epoch, step) in enumerate([(10, 5), (2, 5), (9, 5), (2, 3)]):
        path = tmp_path / f"net-{epoch}_{step}.ckpt"
        write_checkpoint(path, weights(epoch))
        os.utime(path, (1000 - number, 1000 - number))
    (tmp_path / "net-graph.meta").write_text("x")
    series = CheckpointSeries.open(tmp_path)
    assert [path.name for path in series.paths] == ["net-2_3.ckpt", "net-2_5.ckpt", "net-9_5.ckpt", "net-10_5.ckpt"]
    assert [entry.step for entry in series.entries] == [8, 10, 45, 50]
    assert series.layout is None


def test_folders_that_are_no_series_are_refused(tmp_path):
    with pytest.raises(SeriesError, match="is not a folder"):
        CheckpointSeries.open(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"directory is \[.*; it must be the path of a folder"):
        CheckpointSeries.open([tmp_path])
    write_checkpoint(tmp_path / "net-1_1.ckpt", weights(1))
    write_checkpoint(tmp_path / "net_1-1_1.ckpt", weights(1))
    with pytest.raises(SeriesError, match="several runs: 'net', 'net_1'"):
        CheckpointSeries.open(tmp_path)
    (tmp_path / "net_1-1_1.ckpt").rename(tmp_path / "net-1_1.safetensors")
    with pytest.raises(SeriesError, match=r"'net-1_1' and 'net-1_1' don't say which is older"):
        CheckpointSeries.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(layout={}), "stored layout"),
        (lambda c: c.update(entries=None), "an entry is None"),
        (lambda c: c["entries"][0].update(step="1"), "an entry is"),
        (lambda c: c["entries"][0].pop("digest"), "an entry is"),
        (lambda c: c["entries"].reverse(), "step 1 .* comes after step 2"),
        (lambda c: c["entries"][0].update(file="../secret.ckpt"), "same folder"),
        (lambda c: c["entries"][0].update(file="/etc/secret.ckpt"), "same folder"),
        (lambda c: c["entries"][0].update(file="a\0.ckpt"), "same folder"),
        (lambda c: c["entries"][0].update(file=".."), "same folder"),
        (lambda c: c["entries"][0].update(file="a.pkl"), "same folder"),
    ],
)
def test_a_damaged_manifest_is_explained(tmp_path, change, words):
    fill(tmp_path, [1, 2])
    content = read_checksummed(tmp_path / "manifest.json", SERIES)
    change(content)
    write_checksummed(tmp_path / "manifest.json", SERIES, content)
    for open_series in (CheckpointSeries.open, CheckpointSeries.create, CheckpointSeries.resume):
        with pytest.raises(SeriesError, match=words):
            open_series(tmp_path)


def test_a_used_folder_is_refused_when_it_is_opened_and_nothing_changes(tmp_path):
    fill(tmp_path, [1, 2])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(
        SeriesError, match=r"has snapshots of an earlier training\. Name another folder.*CheckpointSeries\.resume"
    ):
        CheckpointSeries.create(tmp_path, prefix="other")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "killed").mkdir()  # before its first manifest
    write_checkpoint(tmp_path / "killed" / "resnet-1_1.ckpt", weights(1))
    with pytest.raises(SeriesError, match="snapshots of an earlier training"):
        CheckpointSeries.create(tmp_path / "killed", prefix="resnet")
    assert fill(tmp_path / "killed", [1]).steps == [1]


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    with slow_writer(tmp_path / "net-1_1.ckpt"):
        pass
    assert len(list(tmp_path.iterdir())) == 1
    CheckpointSeries.create(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "format"),
    [
        *((name, format) for name in (3, "\ud800", 70_000 * "x") for format in ("ckpt", "safetensors")),
        ("__metadata__", "safetensors"),
    ],
    ids=lambda value: str(value)[:9].encode(errors="replace").decode(),
)
def test_a_name_that_no_reader_takes_is_refused_before_anything_is_written(tmp_path, name, format):
    series = CheckpointSeries.create(tmp_path, format=format)
    with pytest.raises(ConfigError, match=r"weights has the name .*; a name is a text of up to 65,536 bytes"):
        series.append({**weights(2), name: np.ones(2, np.float32)}, 2, 2)
    assert list(tmp_path.iterdir()) == []
