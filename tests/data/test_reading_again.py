"""What was read of an epoch before a fault is read and passed over, and the rest is as if nothing had happened."""

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore.dataset import Dataset

from dimred.data.batches import Readable, read_batches
from dimred.data.digits import write_image_tree
from dimred.data.image_folder import ImageFolder
from dimred.errors import DataError


@pytest.fixture
def may_go(tmp_path: Path) -> ImageFolder:
    """Write images whose every pixel is their number, to a folder that may be gone for a while."""
    images = [("train", "ab"[number % 2], f"{number:02d}", np.full((8, 8, 3), 10 * number)) for number in range(20)]
    write_image_tree(tmp_path / "data", images)
    options = {"image_size": 8, "batch_size": 5, "mean": (10.0,) * 3, "std": (2.0,) * 3, "resize": False}
    return ImageFolder(tmp_path / "data" / "train", augmentation="pad_crop", **options)


def reread(images: ImageFolder, **options) -> list[bytes]:
    epoch = read_batches(lambda: images.training_epoch(5, 3), **options)
    return [batch[0].asnumpy().tobytes() for batch in epoch]


def test_a_folder_that_comes_back_costs_nothing_but_time(
    may_go: ImageFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = reread(may_go)
    away = tmp_path / "away"
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            away.rename(may_go.folder)

    may_go.folder.rename(away)
    assert reread(may_go, wait=wait) == whole
    said = caplog.messages
    assert len(said) == len(waits) == 2
    assert str(may_go.folder) in said[0]


class Interrupted(Readable):
    """An epoch whose folder is gone after some batches."""

    def __init__(self, batches: Dataset, n_batches: int | None):
        super().__init__(batches)
        self.n_batches = n_batches

    def create_tuple_iterator(self, num_epochs: int = 1, output_numpy: bool = False) -> Iterator[Any]:
        yield from islice(super().create_tuple_iterator(num_epochs, output_numpy), self.n_batches)
        if self.n_batches is not None:
            raise DataError("the folder is gone")


def test_what_is_left_of_an_epoch_is_augmented_as_before(may_go: ImageFolder) -> None:
    """The folder is gone for a moment in the middle of the epoch, and once more before the next attempt begins."""
    whole, faults = reread(may_go), iter([3, 0])
    epoch = read_batches(
        lambda: Interrupted(may_go.training_epoch(5, 3).batches, next(faults, None)), wait=lambda seconds: None
    )
    assert [batch[0].asnumpy().tobytes() for batch in epoch] == whole
    assert next(faults, None) is None


@pytest.mark.parametrize("done", [0, 1, 3, 4, 9])
def test_a_run_that_goes_on_reads_what_is_done_and_skips_it(may_go: ImageFolder, done: int) -> None:
    whole, skipped = reread(may_go), []
    assert len(whole) == 4
    assert reread(may_go, skip=done, at_skipped=lambda: skipped.append(1)) == whole[done:]
    assert len(skipped) == min(done, 4)


def test_a_fault_while_a_run_that_goes_on_skips_costs_nothing_but_time(may_go: ImageFolder, tmp_path: Path) -> None:
    whole, away, waits = reread(may_go), tmp_path / "away", []

    def come_back(seconds: float) -> None:
        waits.append(seconds)
        away.rename(may_go.folder)

    may_go.folder.rename(away)
    assert reread(may_go, skip=2, wait=come_back) == whole[2:]
    assert waits == [2.0]


def test_a_folder_that_stays_away_ends_it(may_go: ImageFolder) -> None:
    shutil.rmtree(may_go.folder)
    with pytest.raises(DataError, match="train"):
        reread(may_go, wait=lambda seconds: None)
