"""Checkpoints of MindSpore: read, averaged, and loaded by it again."""

from pathlib import Path

import mindspore
import numpy as np

import dimred
from dimred.checkpoints.checkpoint_io import read_checkpoint, write_checkpoint
from tests.helpers.checkpoint_files import draw, metadata_of, read_file
from tests.oracles import merge as oracle


def test_mindspores_checkpoints_keep_their_texts_and_counters(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    written = [
        {"w": draw((300, 7), np.float32, seed), "bn.moving_mean": draw((5,), np.float32, seed)} for seed in (1, 2)
    ]
    for epoch, arrays in enumerate(written, start=1):
        write_checkpoint(tmp_path / "run" / f"net-{epoch}_10.ckpt", arrays, {"epoch": epoch, "note": f"end of {epoch}"})
    out = tmp_path / "avg.ckpt"
    dimred.merge(tmp_path / "run", out)
    found = read_checkpoint(out)  # compares its checksum too
    assert found["epoch"].item() == 2
    assert found["note"].item() == "end of 2"
    for name in ("w", "bn.moving_mean"):
        mean = oracle.weighted_mean([one[name] for one in written], [1, 1]).astype(np.float32)
        np.testing.assert_array_equal(found[name], mean)
        np.testing.assert_array_equal(mindspore.load_checkpoint(str(out))[name].asnumpy(), mean)
    other = tmp_path / "avg.safetensors"
    dimred.merge(tmp_path / "run", other)
    np.testing.assert_array_equal(read_file(other)["w"], found["w"])
    assert metadata_of(other) == {"format": "ms", "note": "end of 2"}
    loaded = mindspore.load_checkpoint(str(other), format="safetensors")
    np.testing.assert_array_equal(loaded["w"].asnumpy(), found["w"])
