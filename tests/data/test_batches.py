"""A data folder that is gone: tried again, and nothing is read twice or passed over."""

import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from dimred.data.batches import Readable, read_batches
from dimred.data.image_folder import ImageFolder
from dimred.data.image_tree import save_image
from dimred.errors import DataError


@pytest.fixture
def images(tmp_path: Path) -> ImageFolder:
    rng = np.random.default_rng(1)
    for number in range(24):
        save_image(rng.integers(0, 256, (8, 8, 3)), tmp_path / "train" / str(number % 2) / f"{number:02d}.png")
    options = {"image_size": 8, "batch_size": 4, "mean": [0.0] * 3, "std": [1.0] * 3, "augmentation": "pad_crop"}
    return ImageFolder(tmp_path / "train", **options)


def read(images: ImageFolder, **options) -> list[bytes]:
    batches = read_batches(lambda: images.training_epoch(5, 3), **options)
    return [batch[0].asnumpy().tobytes() for batch in batches]


def test_a_folder_that_comes_back_costs_nothing_but_time(
    images: ImageFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = read(images)
    away = tmp_path / "away"
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            away.rename(images.folder)

    images.folder.rename(away)
    assert read(images, wait=wait) == whole
    said = caplog.messages
    assert len(said) == len(waits) == 2
    assert str(images.folder) in said[0]


def test_what_is_left_of_an_epoch_is_augmented_as_before(images: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is gone for a moment in the middle of the epoch, and once more before another is begun."""
    whole, faults = read(images), iter([3, 0])
    iterate = Readable.create_tuple_iterator

    def fail(self: Readable, **options):
        until = next(faults, None)
        yield from iterate(self, **options) if until is None else islice(iterate(self, **options), until)
        if until is not None:
            raise DataError("the folder is gone")

    monkeypatch.setattr(Readable, "create_tuple_iterator", fail)
    monkeypatch.setattr("dimred.data.batches._WAITS_SECONDS", (0.0, 0.0))
    assert read(images) == whole
    assert next(faults, None) is None


def test_a_folder_that_stays_away_ends_it(images: ImageFolder) -> None:
    shutil.rmtree(images.folder)
    with pytest.raises(DataError, match="train"):
        read(images, wait=lambda seconds: None)
