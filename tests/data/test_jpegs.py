"""Real JPEGs as ImageNet has them: capital suffixes, grey, CMYK, PNG in disguise, damaged."""

import io

import pytest
from PIL import Image

from dimred.data.image_folder import ImageFolder, split_folder
from dimred.data.image_tree import check_images
from dimred.errors import DataError
from tests.helpers.commands import dimred
from tests.helpers.imagenet_tree import write_imagenet_tree


@pytest.fixture
def tree(tmp_path):
    write_imagenet_tree(tmp_path, n_classes=2, train=4, val=1)
    disguised = io.BytesIO()
    Image.new("RGBA", (40, 30), (9, 9, 9, 9)).save(disguised, "PNG")
    (tmp_path / "train" / "n00000000" / "disguised.jpeg").write_bytes(disguised.getvalue())
    return tmp_path


def images(tree, **options):
    return ImageFolder(
        tree / "train", image_size=32, batch_size=3, mean=(0.0,) * 3, std=(1.0,) * 3,
        augmentation="random_resized_crop", **options,
    )  # fmt: skip


def read(batches):
    return [image for batch, _ in batches.create_tuple_iterator(num_epochs=1, output_numpy=True) for image in batch]


def test_grey_cmyk_and_disguised_images_become_three_channels(tree):
    assert split_folder(tree, "val") == tree / "validation_preprocess"
    folder = images(tree)
    assert folder.n_images == 9
    assert {image.shape for image in read(folder.evaluation())} == {(3, 32, 32)}
    assert len(read(folder.training_epoch(1, 1))) == 9


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"junk" * 99])
def test_damaged_images_stop_or_are_replaced_and_are_counted(tree, damage):
    path = tree / "train" / "n00000001" / "n00000001_2.JPEG"
    path.write_bytes(damage(path.read_bytes()))
    for batches in (images(tree).training_epoch(1, 1), images(tree).evaluation()):
        with pytest.raises(DataError, match=r"n00000001_2\.JPEG can't be read as an image; restore it"):
            read(batches)
    assert len(read(images(tree, damaged="replace").training_epoch(1, 1))) == 9
    assert [file for file, kind in check_images(tree, 2).items() if kind == "damaged"] == [path]


def test_the_command_names_damaged_images(tree):
    good = dimred("data", "check", tree, "--workers", 2, cwd=tree)
    assert (good.returncode, good.stdout.strip()) == (0, "2 CMYK, 6 colour, 2 grey, 1 other")
    path = tree / "train" / "n00000001" / "n00000001_2.JPEG"
    path.write_bytes(b"")
    bad = dimred("data", "check", tree, "--workers", 2, cwd=tree)
    assert (bad.returncode, bad.stdout.splitlines()[0]) == (1, str(path))
