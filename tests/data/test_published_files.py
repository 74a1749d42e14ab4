"""MNIST's and CIFAR's files are read as MindSpore reads them, and damaged ones are refused by name."""

import shutil
from collections.abc import Callable
from pathlib import Path

import mindspore.dataset as ds
import numpy as np
import pytest
from pydantic import ValidationError

from dimred.config import DataConfig
from dimred.data.batches import Readable
from dimred.data.datasets import DATASETS, numbers_of_split
from dimred.data.published_files import PUBLISHED
from dimred.errors import DataError
from tests.helpers.commands import dimred_here
from tests.helpers.published_files import write_cifar10, write_cifar100, write_idx, write_mnist


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "MNIST with ü"
    write_mnist(folder)
    return folder


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "cifar-10-batches-bin"
    write_cifar10(folder)
    return folder


def by_mindspore(dataset: ds.Dataset) -> tuple[np.ndarray, np.ndarray]:
    rows = [(columns[0], columns[-1]) for columns in dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)]
    images, labels = zip(*rows, strict=True)
    return np.stack(images), np.array([int(label) for label in labels])


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("part", ["train", "test"])
def test_idx_files_give_what_mindspores_reader_gives(part: str, ending: str, mnist: Path, tmp_path: Path) -> None:
    """Its reader takes no .gz, and neither file of a folder that has both."""
    write_mnist(tmp_path, ending=ending)
    images, labels = by_mindspore(ds.MnistDataset(str(mnist), part, shuffle=False))
    found = PUBLISHED["mnist"].read(tmp_path, part)
    assert (found.images.dtype, found.labels.dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(found.images, images)
    np.testing.assert_array_equal(found.labels, labels)


def test_of_a_file_and_its_gz_the_plain_one_is_read(tmp_path: Path) -> None:
    write_mnist(tmp_path, n_train=30, ending=".gz")
    write_mnist(tmp_path, n_train=20)
    assert len(PUBLISHED["mnist"].read(tmp_path, "train").labels) == 20


def test_cifar_10_gives_what_mindspores_reader_gives(cifar10: Path) -> None:
    numbers = [0, 1, 9_999, 10_000, 49_999]
    sampler = ds.SubsetSampler(numbers)
    images, labels = by_mindspore(ds.Cifar10Dataset(str(cifar10), "train", sampler=sampler))
    found = PUBLISHED["cifar10"].read(cifar10, "train")
    assert found.images.shape == (50_000, 32, 32, 3)
    np.testing.assert_array_equal(found.images[numbers], images)
    np.testing.assert_array_equal(found.labels[numbers], labels)
    assert PUBLISHED["cifar10"].class_names(cifar10)[:2] == ["zero", "one"]
    assert len(PUBLISHED["cifar10"].read(cifar10, "test").labels) == 10_000


def test_cifar_100_gives_the_fine_labels_as_mindspores_reader_does(tmp_path: Path) -> None:
    write_cifar100(tmp_path)
    numbers = [3, 9_999]
    dataset = ds.Cifar100Dataset(str(tmp_path), "test", sampler=ds.SubsetSampler(numbers))
    rows = list(dataset.create_dict_iterator(num_epochs=1, output_numpy=True))
    found = PUBLISHED["cifar100"].read(tmp_path, "test")
    np.testing.assert_array_equal(found.images[numbers], [row["image"] for row in rows])
    np.testing.assert_array_equal(found.labels[numbers], [int(row["fine_label"]) for row in rows])
    assert PUBLISHED["cifar100"].class_names(tmp_path) == [str(number) for number in range(100)]


def with_first_bytes(*numbers: int) -> Callable[[bytes], bytes]:
    return lambda content: bytes(numbers) + content[len(numbers) :]


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("train-images-idx3-ubyte", lambda b: b[:-1], "has 94,095 bytes, but such a file has 94,096: it is cut"),
        ("train-images-idx3-ubyte", lambda b: b[:9], "has 9 bytes, but such a file has"),
        ("train-images-idx3-ubyte", lambda b: b + b"\n", "94,097 bytes, .*: something follows its end; restore it"),
        (
            "train-labels-idx1-ubyte",
            with_first_bytes(0, 0, 8, 3),
            "begins with the bytes 00 00 08 03, but an idx ",
        ),
        ("train-images-idx3-ubyte", with_first_bytes(0, 0, 13), "begins with the bytes 00 00 0d 03"),
        ("train-images-idx3-ubyte", lambda b: b"", r"begins with the bytes \(none\)"),
        ("train-labels-idx1-ubyte", lambda b: b[:8] + b"\n" + b[9:], "has the label 10 at sample 0, but MNIST has the"),
        ("train-labels-idx1-ubyte", lambda b: b[:7] + b"\x77" + b[8:-1], "120 images, but .* has 119 labels; they do"),
    ],
)
def test_a_damaged_idx_file_is_named(
    name: str, change: Callable[[bytes], bytes], said: str, mnist: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(mnist, tmp_path / "data")
    (data / name).write_bytes(change((data / name).read_bytes()))
    with pytest.raises(DataError, match=said) as refused:
        PUBLISHED["mnist"].read(data, "train")
    assert repr(str(data / name)) in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda b: b[:-9], "Compressed file ended before the end"),
        (lambda b: b[:40] + bytes([b[40] ^ 1]) + b[41:], "can't be read"),
        (lambda b: b + b"more", "can't be read .*Not a gzipped file"),
        (lambda b: b"<html>404</html>", "can't be read .*Not a gzipped file"),
    ],
)
def test_a_damaged_gz_is_named(change: Callable[[bytes], bytes], said: str, tmp_path: Path) -> None:
    write_mnist(tmp_path, ending=".gz")
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=rf"{path.name}' .*{said}"):
        PUBLISHED["mnist"].read(tmp_path, "test")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda b: b[:-3073], "has 30,726,927 bytes, but such a file has 30,730,000: it is cut"),
        (lambda b: b + b"\0", "something follows its end"),
        (with_first_bytes(10), "has the label 10 at sample 0, but CIFAR-10 has the classes 0 to 9"),
    ],
)
def test_a_damaged_cifar_file_is_named(
    change: Callable[[bytes], bytes], said: str, cifar10: Path, tmp_path: Path
) -> None:
    (tmp_path / "test_batch.bin").write_bytes(change((cifar10 / "test_batch.bin").read_bytes()))
    with pytest.raises(DataError, match=rf"test_batch\.bin' .*{said}"):
        PUBLISHED["cifar10"].read(tmp_path, "test")


def test_the_pickled_cifar_is_refused_with_the_name_of_the_other(tmp_path: Path) -> None:
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        (tmp_path / name).write_bytes(b"\x80\x04]\x94.")
    with pytest.raises(
        DataError, match=r"data_batch_1 is from the Python version, which is pickled, .*cifar-10-binary"
    ):
        PUBLISHED["cifar10"].check(tmp_path)
    (tmp_path / "meta").write_bytes(b"\x80\x04]\x94.")
    with pytest.raises(DataError, match=r"meta is from the Python version, .*cifar-100-binary\.tar\.gz"):
        PUBLISHED["cifar100"].check(tmp_path)


def test_a_missing_file_is_named_and_names_of_classes_must_be_whole(mnist: Path, cifar10: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"which is not a folder; name the folder with MNIST's files"):
        PUBLISHED["mnist"].check(tmp_path / "nowhere")
    data = shutil.copytree(mnist, tmp_path / "data")
    (data / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"has no file t10k-labels-idx1-ubyte; .*or their \.gz"):
        PUBLISHED["mnist"].check(data)
    DATASETS["mnist"].check(data, ["train", "val"])
    with pytest.raises(DataError, match=r"no file data_batch_1\.bin; unpack CIFAR-10's binary version, cifar-10-bin"):
        PUBLISHED["cifar10"].check(data)
    (tmp_path / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match=r"batches\.meta\.txt' has 2 different names, but CIFAR-10 has 10 classes"):
        PUBLISHED["cifar10"].class_names(tmp_path)


def mnist_split(data: Path, split: str, **options: object):
    given = {"image_size": 28, "mean": (0.0,), "std": (1.0,), "batch_size": 8, "val_fraction": 0.1, "val_seed": 1}
    return DATASETS["mnist"].split(data, split, **given | options)


def batches(readable: Readable) -> list[tuple[np.ndarray, ...]]:
    return list(readable.create_tuple_iterator(output_numpy=True))


def content(readable: Readable) -> list[bytes]:
    return [b"".join(column.tobytes() for column in batch) for batch in batches(readable)]


def test_val_is_drawn_from_train_by_its_seed_and_said(mnist: Path, caplog: pytest.LogCaptureFixture) -> None:
    splits = {split: mnist_split(mnist, split) for split in ("train", "val", "test")}
    assert {split: part.n_images for split, part in splits.items()} == {"train": 108, "val": 12, "test": 40}
    assert caplog.messages == [
        "'train' has 108 of MNIST's 120 samples to train on; the other 12 are 'val', drawn with data.val_seed 1"
    ]
    whole = PUBLISHED["mnist"].read(mnist, "train").images
    held = {split: [image for images, _ in batches(splits[split].evaluation()) for image in images] for split in splits}
    seen = [image.astype(np.uint8).tobytes() for image in held["train"] + held["val"]]
    assert sorted(seen) == sorted(image.tobytes() for image in whole)
    again, other = (mnist_split(mnist, "val", val_seed=seed) for seed in (1, 2))
    assert again.digest() == splits["val"].digest() != other.digest()
    assert splits["train"].digest() != mnist_split(mnist, "train", val_seed=2).digest()


@pytest.mark.parametrize(("fraction", "n_val"), [(0.0, 0), (0.1, 1), (0.5, 5), (0.96, 10)])
def test_train_and_val_share_no_sample_and_leave_none_out(fraction: float, n_val: int) -> None:
    found = []
    for split, n in (("train", 10 - n_val), ("val", n_val)):
        if n:
            numbers = numbers_of_split(split, 10, fraction, 3)
            assert len(numbers) == n
            found += [*numbers]
        else:
            with pytest.raises(
                DataError, match=rf"data\.val_fraction is {fraction}, which leaves no sample .*'{split}'"
            ):
                numbers_of_split(split, 10, fraction, 3)
    assert sorted(found) == list(range(10))


def test_order_and_augmentation_follow_seed_and_epoch_and_ranks_share_a_batch(mnist: Path) -> None:
    options = {"augmentation": "pad_crop", "pad": 4, "flip": True, "workers": 2}
    first = content(mnist_split(mnist, "train", **options).training_epoch(1, 3))
    assert content(mnist_split(mnist, "train", **options).training_epoch(1, 3)) == first
    assert content(mnist_split(mnist, "train", **options).training_epoch(1, 4)) != first
    assert content(mnist_split(mnist, "train").training_epoch(1, 3)) != first
    alone = batches(mnist_split(mnist, "train", batch_size=16).training_epoch(1, 3))
    ranks = [batches(mnist_split(mnist, "train", rank=rank, group_size=2).training_epoch(1, 3)) for rank in (0, 1)]
    for (images, labels), *of_ranks in zip(alone, *ranks, strict=True):
        np.testing.assert_array_equal(np.concatenate([batch[0] for batch in of_ranks]), images)
        np.testing.assert_array_equal(np.concatenate([batch[1] for batch in of_ranks]), labels)


def test_images_are_normalised_and_have_the_channels_that_mean_has_values_for(mnist: Path) -> None:
    grey = mnist_split(mnist, "test", mean=(51.0,), std=(102.0,))
    ((images, labels), *_) = batches(grey.evaluation())
    assert (images.shape, images.dtype, labels.dtype) == ((8, 1, 28, 28), np.float32, np.int32)
    assert grey.input_shape == images.shape[1:]
    expected = (PUBLISHED["mnist"].read(mnist, "test").images[:8].transpose(0, 3, 1, 2) - 51.0) / 102.0
    np.testing.assert_allclose(images, expected, atol=1e-6)
    coloured = mnist_split(mnist, "test", mean=(51.0, 0.0, 0.0), std=(102.0, 1.0, 1.0))
    ((images, _), *_) = batches(coloured.evaluation())
    assert images.shape == (8, 3, 28, 28)
    np.testing.assert_allclose(images[:, :1], expected, atol=1e-6)
    np.testing.assert_array_equal(images[:, 1], images[:, 2])


def test_images_of_another_size_are_resized_or_refused(mnist: Path) -> None:
    ((images, _), *_) = batches(mnist_split(mnist, "test", image_size=32, batch_size=40).evaluation())
    assert images.shape == (40, 1, 32, 32)
    assert images[:, :, 0].max() == 0  # the whole image, not its centre
    assert images.max() > 250
    with pytest.raises(DataError, match=r"resize is false, but the images have 28 x 28 pixels, and .* is 32"):
        mnist_split(mnist, "test", image_size=32, resize=False)
    ((images, _), *_) = batches(mnist_split(mnist, "train", augmentation="random_resized_crop").training_epoch(1, 1))
    assert images.shape == (8, 1, 28, 28)


def test_cifar_takes_no_grey_normalisation(cifar10: Path) -> None:
    options = {"image_size": 32, "batch_size": 4, "val_fraction": 0.1, "val_seed": 1}
    with pytest.raises(DataError, match=r"mean and data\.std have 1 value, but the images have 3 channels"):
        DATASETS["cifar10"].split(cifar10, "test", mean=(1.0,), std=(1.0,), **options)
    train = DATASETS["cifar10"].split(cifar10, "train", mean=(0.0,) * 3, std=(1.0,) * 3, **options)
    assert (train.n_images, train.classes[2]) == (45_000, "two")
    ((images, _), *_) = batches(train.shortened(1).training_epoch(1, 1))
    np.testing.assert_array_equal(images[:, 0], 255 - images[:, 2])  # red and blue, as they were written


def test_an_idx_file_of_another_shape_is_read_by_its_header(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.arange(40 * 6, dtype=np.uint8).reshape(40, 2, 3))
    assert PUBLISHED["mnist"].read(tmp_path, "test").images[1].tolist() == [[[6], [7], [8]], [[9], [10], [11]]]


def test_data_check_reads_all_files_and_names_the_damaged_one(mnist: Path, tmp_path: Path) -> None:
    done = dimred_here("data", "check", mnist, "--dataset", "mnist", status=0)
    assert done.stdout.splitlines() == [
        "train: 120 images of 28 x 28 pixels in 10 classes",
        "test: 40 images of 28 x 28 pixels in 10 classes",
    ]
    data = shutil.copytree(mnist, tmp_path / "data")
    (data / "t10k-labels-idx1-ubyte").write_bytes(b"\0")
    done = dimred_here("data", "check", data, "--dataset", "mnist", status=2)
    assert "t10k-labels-idx1-ubyte' begins with the bytes 00, but an idx file of labels" in done.stderr
    done = dimred_here("data", "check", mnist, "--dataset", "imagenet", status=2)
    assert "--dataset is 'imagenet'; allowed: image_folder, mnist, cifar10, cifar100" in done.stderr


def test_the_names_in_the_configuration_are_those_of_the_table() -> None:
    for name in DATASETS:
        assert DataConfig(dataset=name).dataset == name
    with pytest.raises(ValidationError, match=f"allowed: {', '.join(DATASETS)}, or your own"):
        DataConfig(dataset="svhn")
    assert DataConfig(dataset=None).dataset == DataConfig().dataset == "image_folder"
