"""The studies' own tasks: nothing of one split is in another, nothing is read twice, and no byte sees a later one."""

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from dimred.builders import build_network
from dimred.config import StageOneConfig, load_config
from dimred.data.batches import STAGE_2_EPOCHS_FROM
from tests.benchmarks import photos, source_code
from tests.benchmarks.source_code import CONTEXT, dataset


def test_photos_have_their_counts_and_no_block_in_two_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "SPLITS", {"train": (20, 3), "val": (4, 2), "test": (6, 1)})
    counts = photos.write_photos(tmp_path / "photos", seed=2)
    assert counts == {"train": 120, "val": 16, "test": 12}
    blocks = {}
    for split, count in counts.items():
        images = list((tmp_path / "photos" / split).rglob("*.png"))
        assert len(images) == count
        assert {image.parent.name for image in images} <= set(photos.CHANGES)
        blocks[split] = {image.name.rsplit("_", 1)[0] for image in images}
    assert len(set.union(*blocks.values())) == sum(map(len, blocks.values())) == 60


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 files, each a text of its own, and one that is a test."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "test").mkdir()
    for number in range(60):
        (folder / f"{number}.py").write_text("".join(f"def f_{number}_{line}(): pass\n" for line in range(100)))
    (folder / "test" / "not_read.py").write_text("?" * 9000)
    return folder


def test_epochs_and_searches_read_other_windows_and_no_file_is_in_two_splits(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(split: str, epoch: int | None) -> list[bytes]:
        return [bytes(window.astype(np.uint8)) for window, _ in dataset(library, split, None, epoch)]

    monkeypatch.setattr(source_code, "EPOCH", 100)
    epochs = [*range(1, 6), *range(STAGE_2_EPOCHS_FROM + 1, STAGE_2_EPOCHS_FROM + 4)]
    windows = [read("train", epoch) for epoch in epochs]
    assert [len(of_epoch) for of_epoch in windows] == [100] * len(epochs)
    everything = [window for of_epoch in windows for window in of_epoch]
    assert len(set(everything)) == len(everything)
    assert read("train", None) == windows[0]
    files = {
        split: {part.split(b"_")[0] for window in found for part in window.split(b"f_")[1:] if part.count(b"_")}
        for split, found in (("train", everything), ("val", read("val", None)), ("test", read("test", None)))
    }
    assert all(files.values())
    assert len(set.union(*files.values())) == sum(map(len, files.values()))


def test_the_transformer_is_causal(library: Path) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network = build_network(load_config(StageOneConfig, Path(__file__).with_name("source_code_1.yaml"))).set_train(
        False
    )
    text = np.array([window for window, _ in dataset(library, "val", None, None)])[:8]
    other = text.copy()
    other[:, 90] += 1
    one, two = (network(Tensor(given)).asnumpy() for given in (text, other))
    ms.set_context(mode=ms.GRAPH_MODE)
    assert one.shape == (8, 256, CONTEXT)
    np.testing.assert_array_equal(one[:, :, :90], two[:, :, :90])
    assert np.abs(one - two)[:, :, 90:].max(axis=(0, 1)).min() > 0
