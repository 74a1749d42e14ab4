import hashlib
import re

import numpy as np
import pytest

from dimred.checkpoints.checkpoint_io import write_checkpoint
from dimred.checkpoints.layout import CHUNK, vector_digest
from dimred.checkpoints.matrix import WeightMatrix
from dimred.checkpoints.series import CheckpointSeries
from dimred.errors import CheckpointError, SeriesError
from tests.helpers.planted import as_weights, random_walk, write_series


def collect(matrix):
    return np.concatenate([block.copy() for _, block in matrix.blocks()], axis=1)


def test_blocks_are_the_snapshots_row_by_row_and_hashed_as_such(tmp_path):
    snapshots = random_walk(4, 2 * CHUNK + 1234)
    series = write_series(tmp_path, snapshots)
    matrix = WeightMatrix(series)
    assert matrix.shape == snapshots.shape
    digests = [hashlib.sha256() for _ in snapshots]
    blocks = [(first, block.copy()) for first, block in matrix.blocks(digests)]
    assert [first for first, _ in blocks] == [0, CHUNK, 2 * CHUNK]
    assert np.array_equal(np.concatenate([block for _, block in blocks], axis=1), snapshots)
    for digest, snapshot, entry in zip(digests, snapshots, series.entries, strict=True):
        assert digest.hexdigest() == vector_digest(snapshot) == entry.digest


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_float_types_become_float32_in_place(tmp_path, suffix, dtype, monkeypatch):
    monkeypatch.setattr("dimred.checkpoints.ckpt_format.PIECE_BYTES", 24)
    snapshots = random_walk(2, 60).astype(dtype)
    for number, vector in enumerate(snapshots, 1):
        write_checkpoint(tmp_path / f"n-{number}_1{suffix}", as_weights(vector))
    matrix = WeightMatrix(CheckpointSeries.open(tmp_path))
    out = np.empty((2, 17), np.float32)
    matrix.read(14, out)
    assert np.array_equal(out, snapshots[:, 14:31].astype(np.float32))


def test_snapshots_that_can_not_be_used_are_named_or_left_out(tmp_path, caplog):
    """Four of six snapshots without a manifest are broken, each in its own way."""
    snapshots = random_walk(6, 300)
    for step, vector in enumerate(snapshots, 1):
        write_checkpoint(tmp_path / f"n-{step}_1.ckpt", as_weights(vector))
    whole = (tmp_path / "n-2_1.ckpt").read_bytes()
    (tmp_path / "n-2_1.ckpt").write_bytes(whole[: len(whole) // 2])
    write_checkpoint(tmp_path / "n-3_1.ckpt", {**as_weights(snapshots[2]), "fc": np.ones(7, np.float32)})
    without = {name: value for name, value in as_weights(snapshots[3]).items() if name != "bn.gamma"}
    write_checkpoint(tmp_path / "n-4_1.ckpt", without)
    write_checkpoint(tmp_path / "n-5_1.ckpt", {**as_weights(snapshots[4]), "bn.gamma": np.arange(5)})
    matrix = WeightMatrix(CheckpointSeries.open(tmp_path), skip_bad=True)
    assert np.array_equal(collect(matrix), snapshots[[0, 5]])
    for message, words in zip(
        caplog.messages,
        [
            r"n-2_1\.ckpt is not a whole MindSpore checkpoint",
            r"n-3_1\.ckpt does not fit .*: its parameter 'fc' has shape \(7,\) instead of \(195,\)",
            r"n-4_1\.ckpt does not fit .*: it has no parameter 'bn\.gamma' \(5,\)",
            r"n-5_1\.ckpt does not fit .*: its parameter 'bn\.gamma' has the type int64",
        ],
        strict=True,
    ):
        assert re.search(words, message)
        with pytest.raises(CheckpointError, match=words):
            WeightMatrix(CheckpointSeries.open(tmp_path))
        (tmp_path / re.search(r"n-\d_1\.ckpt", message)[0]).unlink()


def test_a_series_without_usable_snapshots_is_refused(tmp_path):
    (tmp_path / "n-1_1.ckpt").write_bytes(b"")
    with pytest.raises(SeriesError, match="None of the 1 snapshots"):
        WeightMatrix(CheckpointSeries.open(tmp_path), skip_bad=True)
    write_checkpoint(tmp_path / "n-1_1.ckpt", {"count": np.ones(1, np.int32)})
    with pytest.raises(CheckpointError, match="no trainable weights"):
        WeightMatrix(CheckpointSeries.open(tmp_path))


@pytest.mark.parametrize("change", ["remove", "truncate"])
def test_a_file_that_is_gone_or_cut_between_two_reads_is_refused(tmp_path, change):
    series = write_series(tmp_path, random_walk(2, 50))
    matrix = WeightMatrix(series)
    path = series.paths[1]
    if change == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(CheckpointError, match=r"net-2_2\.ckpt (ends at byte|does not exist)"):
        matrix.read(0, np.empty((2, 50), np.float32))


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_file_cut_between_two_tensors_is_found_even_if_it_is_the_first(tmp_path, cut):
    """Such a file is a whole checkpoint of fewer parameters."""
    snapshots = random_walk(3, 60)
    for step, vector in enumerate(snapshots, 1):
        weights = as_weights(vector)
        if step == cut:
            del weights["fc"]
        write_checkpoint(tmp_path / f"n-{step}_1.ckpt", weights)
    with pytest.raises(CheckpointError, match=rf"n-{cut}_1\.ckpt does not fit .*: it has no parameter 'fc'"):
        WeightMatrix(CheckpointSeries.open(tmp_path))
