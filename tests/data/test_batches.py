"""Files that can't be read: named, tried again, and nothing is read twice or passed over."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dimred.data.batches import batches_after
from dimred.data.image_folder import ImageFolder
from dimred.data.image_tree import save_image
from dimred.errors import DataError


@pytest.fixture
def images(tmp_path: Path) -> ImageFolder:
    rng = np.random.default_rng(1)
    for number in range(24):
        save_image(rng.integers(0, 256, (8, 8, 3)), tmp_path / "train" / str(number % 2) / f"{number:02d}.png")
    return ImageFolder(
        tmp_path / "train",
        image_size=8,
        batch_size=4,
        mean=[0.0] * 3,
        std=[1.0] * 3,
        augmentation="pad_crop",
        workers=1,
    )


def read(images: ImageFolder, done: int = 0, **options) -> list[tuple[int, bytes]]:
    epochs = batches_after(lambda: images.training_epoch(5, 3), done, **options)
    return [(number, batch[0].asnumpy().tobytes()) for number, batch in epochs]


def test_what_is_left_of_an_epoch_is_what_the_whole_one_ends_with(
    images: ImageFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = read(images)
    assert [number for number, _ in whole] == [1, 2, 3, 4, 5, 6]
    assert read(images, done=4) == whole[4:]
    assert read(images, done=6) == []
    assert capsys.readouterr().out == ""


def test_each_batch_that_is_read_is_told_though_it_is_passed_over(images: ImageFolder) -> None:
    told: list[None] = []
    images.at_batch = lambda: told.append(None)
    read(images, done=4)
    assert len(told) == 6
    list(images.evaluation().create_tuple_iterator())
    assert len(told) == 12


def test_an_unreadable_image_is_named_at_once(images: ImageFolder) -> None:
    bad = images.folder / "1" / "07.png"
    bad.write_bytes(b"no image")
    for attempt in (lambda: read(images), lambda: list(images.evaluation().create_tuple_iterator())):
        with pytest.raises(DataError, match=r"/train/1/07\.png can't be read as an image; restore it"):
            attempt()


def test_a_folder_that_comes_back_costs_nothing_but_time(
    images: ImageFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(waits) == 2
    assert str(images.folder) in said[0]


def test_batches_for_statistics_are_read_again_too(images: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def spare() -> bytes:
        return next(images.spare_batches(1))[0].asnumpy().tobytes()

    before, faults = spare(), iter([DataError("the folder is gone")])
    monkeypatch.setattr("dimred.data.batches._WAITS_SECONDS", (0.0,))
    monkeypatch.setattr(images._files, "check_unchanged", lambda: _raise_next(faults))
    assert spare() == before


def _raise_next(errors: Iterator[Exception]) -> None:
    if (error := next(errors, None)) is not None:
        raise error


def test_a_folder_that_stays_away_ends_it(images: ImageFolder) -> None:
    shutil.rmtree(images.folder)
    with pytest.raises(DataError, match="train"):
        read(images, wait=lambda seconds: None)
