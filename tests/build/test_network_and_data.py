"""What is said of data before anything expensive."""

from pathlib import Path

import numpy as np
import pytest

from dimred.build import check_splits
from dimred.config import StageOneConfig
from dimred.data.image_tree import smallest_side, write_image_tree


@pytest.fixture
def data(tmp_path: Path) -> Path:
    pixels = np.zeros((16, 20, 3))
    write_image_tree(tmp_path / "data", [("train", name, "one", pixels) for name in ("cat", "dog")])
    return tmp_path / "data"


def test_images_that_would_be_blown_up_are_named(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_splits(StageOneConfig(), data, ["train"])
    said = capsys.readouterr().err
    assert "warning: the images have 16 pixels on the shorter side, and data.image_size is 224" in said
    assert "about 196 times as many" in said
    assert "--set data.image_size=16" in said


@pytest.mark.parametrize(
    "changed", [{"image_size": 32}, {"image_size": 224, "resize": False, "augmentation": "pad_crop"}]
)
def test_others_are_not(data: Path, changed: dict, capsys: pytest.CaptureFixture[str]) -> None:
    check_splits(StageOneConfig.model_validate({"data": changed}), data, ["train"])
    assert capsys.readouterr().err == ""


def test_a_damaged_image_has_no_size(data: Path) -> None:
    assert smallest_side(data / "train") == 16
    for image in (data / "train").glob("*/*"):
        image.write_bytes(b"nothing")
    assert smallest_side(data / "train") is None
