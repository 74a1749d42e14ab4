"""The studies' own tasks: splits share nothing, nothing is read twice, and no byte sees a later one."""

import gzip
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from PIL import Image

from dimred.config import StageOneConfig, load_config
from dimred.data.batches import STAGE_2_EPOCHS_FROM
from dimred.errors import DataError
from dimred.stages.task import build_network
from tests.benchmarks import choice_rules, fashion_mnist, photos, source_code, stored_choices
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
    """Write 60 files, each a text of its own, and one test file, which must not be read."""
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


def test_fashion_mnist_is_drawn_from_its_own_files_and_no_image_is_in_two_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fashion_mnist, "SPLITS", {"train": 12, "val": 5, "test": 6})
    rng, images = np.random.default_rng(0), {}
    for prefix, n in (("train", 20), ("t10k", 8)):
        images[prefix] = rng.integers(0, 256, (n, 28, 28), np.uint8)
        for kind, values in (("images-idx3", images[prefix]), ("labels-idx1", np.arange(n, dtype=np.uint8) % 10)):
            header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            (tmp_path / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + values.tobytes()))
    assert fashion_mnist.write_fashion_mnist(tmp_path / "data", 3, tmp_path) == {"train": 12, "val": 5, "test": 6}
    files = list((tmp_path / "data").rglob("*.png"))
    assert len({path.name for path in files}) == len(files)
    for path in files:
        prefix, number = path.stem.split("_")
        assert (prefix == "t10k") == (path.parts[-3] == "test")
        assert path.parent.name == str(int(number) % 10)
        np.testing.assert_array_equal(np.asarray(Image.open(path)), images[prefix][int(number)])
    with pytest.raises(DataError, match="install Debian's dataset-fashion-mnist"):
        fashion_mnist.read_idx(tmp_path / "nothing.gz")
    (tmp_path / "other.gz").write_bytes(gzip.compress(b"no idx file"))
    with pytest.raises(DataError, match="is no idx file of bytes"):
        fashion_mnist.read_idx(tmp_path / "other.gz")


def test_the_regret_of_a_rule_is_what_its_choice_lacks_on_test(tmp_path: Path) -> None:
    """A sure candidate errs twice, an unsure one errs once, and an average errs twice elsewhere."""
    labels = np.arange(20) % 2

    def logits(margin: float, *wrong: int) -> np.ndarray:
        signs = np.where(np.isin(np.arange(20), wrong), -1, 1) * np.where(labels == 1, 1, -1)
        return np.stack([-signs, signs], 1) * margin / 2

    stored = np.stack([logits(8.0, 0, 1), logits(0.5, 0), logits(0.5, 1, 2)]).astype(np.float16)
    np.savez(
        tmp_path / "task_1_40.npz",
        names=["last", "epoch 1", "uniform of 5 snapshots, steps 1 to 5"], effective_sizes=[1.0, 1.0, 5.0], n_images=50,
        val_logits=stored, test_logits=stored, val_labels=labels, test_labels=labels,
    )  # fmt: skip
    one = stored_choices.read(tmp_path / "task_1_40.npz", 1000)
    np.testing.assert_allclose(one.test, [90, 95, 90])
    assert stored_choices.choose(one, "error", "lowest") == 1
    assert stored_choices.choose(one, "error", "widest") == 2  # within a standard error of the lowest
    assert one.losses["trained"][0, 0] == pytest.approx(0.9 * np.log1p(np.exp(8)) + 0.1 * (4 + np.log1p(np.exp(-8))))
    choice_rules.keep(tmp_path / "task_1_40.npz", tmp_path / "task_2_40.npz")
    np.testing.assert_array_equal(stored_choices.read(tmp_path / "task_2_40.npz", 1000).test, one.test)
    found = choice_rules.regrets([one])
    assert found["error", "lowest"]["task"] == [0]
    assert found["error", "widest"]["task"] == pytest.approx([5])
    values = [{"last": 1.0, "average": 2.0, "stage 2": ours, "plain": 89.0} for ours in (90.0, 92.0)]
    runs = [choice_rules.Result(one, of_run, {"plain": 46}, "last") for of_run in values]
    means = "| task, 40 | 2 | 1.00 | 2.00 | 91.00 | 89.00 | +2.00 ± 1.00 |"
    assert choice_rules.means_table(runs, ["plain"]).splitlines()[2] == means
