"""Checkpoints are selected by their steps before any of them is read."""

import os
from pathlib import Path

import numpy as np
import pytest

import dimred
from dimred.errors import CheckpointError, DimredError
from dimred.merging.inputs import open_checkpoints
from tests.helpers.checkpoint_files import INDEX, network, write_file, write_run


def test_checkpoints_are_selected_by_number_and_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_run(tmp_path, 5)

    def select(last: object, from_step: object, to_step: object) -> list[int]:
        limits = {"last": last, "from_step": from_step, "to_step": to_step}
        return [one.step for one in open_checkpoints([tmp_path], **limits)]

    assert select(2, None, None) == [4000, 5000]
    assert select(None, 2000, 3500) == [2000, 3000]
    assert select(1, None, 3000) == [3000]
    assert not caplog.messages
    assert select(9, 4000, None) == [4000, 5000]
    assert caplog.messages == ["there are only 2 checkpoints, not 9; all of them are taken"]
    for arguments, words in (
        ((None, 5001, None), "steps are 1000 to 5000"),
        *(((last, None, None), f"last is {last!r}; it must be a whole number") for last in (0, True, 2.0, "2")),
        *(((None, step, None), f"from_step is {step!r}; it must be a number") for step in ("2", True, np.nan)),
        ((None, None, -1), "to_step is -1"),
    ):
        with pytest.raises(DimredError, match=words):
            select(*arguments)


@pytest.mark.parametrize("sharded", [False, True])
def test_what_is_not_selected_may_be_damaged_or_of_another_network(tmp_path: Path, sharded: bool) -> None:
    """The newest file is cut off where a disk was full, and the first is from before the network's head was changed."""
    write_run(tmp_path, 4, sharded=sharded)
    newest, first = (tmp_path / f"checkpoint-{number}000" for number in (4, 1))
    file = sorted(newest.glob("*.safetensors"))[-1]
    file.write_bytes(file.read_bytes()[:-100])
    for path in first.iterdir():
        path.unlink()
    write_file(first / "model.safetensors", {name: array for name, array in network(5).items() if name != "fc.weight"})
    dimred.merge(tmp_path, tmp_path / "mean", from_step=2000, to_step=3000)
    for limits in ({"from_step": 2000}, {"to_step": 3000}, {}):
        with pytest.raises(CheckpointError, match=r"checkpoint-[14]000"):
            open_checkpoints(tmp_path, **limits)


def test_the_times_of_shards_order_them_and_not_that_of_their_index(tmp_path: Path) -> None:
    write_run(tmp_path, 2, sharded=True)
    for number in (1, 2):
        for path in (tmp_path / f"checkpoint-{number}000").iterdir():
            seconds = number if path.name == INDEX else 10 - number
            os.utime(path, (seconds, seconds))
    result = open_checkpoints(tmp_path, "mtime")
    assert [one.path.name for one in result] == ["checkpoint-2000", "checkpoint-1000"]
