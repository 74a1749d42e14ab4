"""What is said of data before anything expensive."""

from pathlib import Path

import numpy as np
import pytest

from dimred.builders import build_data, build_splits
from dimred.config import StageOneConfig
from dimred.data.image_folder import smallest_side
from dimred.data.image_tree import write_image_tree
from dimred.distributed.ranks import Ranks


@pytest.fixture
def data(tmp_path: Path) -> Path:
    pixels = np.zeros((16, 20, 3))
    write_image_tree(tmp_path / "data", [("train", name, "one", pixels) for name in ("cat", "dog")])
    return tmp_path / "data"


def test_images_that_would_be_blown_up_are_named(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    build_splits(StageOneConfig(), data, ["train"])
    said = caplog.text
    assert "the images have 16 pixels on the shorter side, and data.image_size is 224" in said
    assert "about 196 times as many" in said
    assert "--set data.image_size=16" in said


@pytest.mark.parametrize(
    "changed", [{"image_size": 32}, {"image_size": 224, "resize": False, "augmentation": "pad_crop"}]
)
def test_images_that_are_not_blown_up_are_not_mentioned(
    data: Path, changed: dict, caplog: pytest.LogCaptureFixture
) -> None:
    build_splits(StageOneConfig.model_validate({"data": changed}), data, ["train"])
    assert not caplog.messages


def test_a_rank_for_which_no_image_is_left_measures_none(data: Path) -> None:
    class Rank(Ranks):
        group_size = 3

        def __init__(self, rank: int) -> None:
            self.rank = rank

    settings = {"image_size": 16, "batch_size": 2, "augmentation": "pad_crop", "workers": 1}
    config = StageOneConfig.model_validate({"data": settings}).data
    of_ranks = [build_data(config, data, "train", Rank(rank)).evaluation() for rank in range(3)]
    assert [sum(len(labels) for _, labels in each.create_tuple_iterator()) for each in of_ranks] == [1, 1, 0]


def test_a_damaged_image_has_no_size(data: Path) -> None:
    assert smallest_side(data / "train") == 16
    for image in (data / "train").glob("*/*"):
        image.write_bytes(b"nothing")
    assert smallest_side(data / "train") is None
