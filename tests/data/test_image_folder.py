"""Class folders of images: order, ranks, augmentation, ImageNet's odd JPEGs, and what is no image."""

import io
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from dimred.data.batches import read_batches
from dimred.data.image_checks import check_images
from dimred.data.image_folder import ImageFolder, check_classes, split_folder
from dimred.data.image_tree import read_image_tree
from dimred.errors import DataError
from tests.helpers import needs
from tests.helpers.commands import dimred_here, run
from tests.helpers.imagenet_tree import write_imagenet_tree

N_IMAGES = 23


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Write images whose every pixel is their number, in classes named so that text order differs from number order."""
    root = tmp_path_factory.mktemp("tree with blanks é")
    for split in ("train", "val"):
        for number in range(N_IMAGES):
            folder = root / split / ("10", "9", "ant")[number % 3]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.full((8, 8, 3), number * 10, np.uint8)
            pixels[:, 4:] += 5  # a left and a right half
            Image.fromarray(pixels).save(folder / f"{number:03d}.png")
    (root / "train" / "ant" / "notes.txt").write_text("not an image")
    return root


def folder(root, split="train", **options) -> ImageFolder:
    options = {"image_size": 8, "batch_size": 5, "mean": (10.0,) * 3, "std": (2.0,) * 3, "resize": False} | options
    return ImageFolder(root / split, **options)


def batches(readable):
    return list(readable.create_tuple_iterator(num_epochs=1, output_numpy=True))


def read(readable):
    """Return (number, label) of every image in order, and the batch sizes."""
    pairs, sizes = [], []
    for images, labels in batches(readable):
        numbers = np.rint((images[:, 0, 0, 0] * 2.0 + 10.0) / 10).astype(int)
        pairs += list(zip(numbers.tolist(), labels.tolist(), strict=True))
        sizes.append(len(labels))
    return pairs, sizes


def test_evaluation_reads_every_image_once_in_the_order_of_the_files(root):
    images = folder(root)
    assert (images.n_images, images.steps_per_epoch, images.classes) == (N_IMAGES, 4, ["10", "9", "ant"])
    pairs, sizes = read(images.evaluation())
    assert sizes == [5, 5, 5, 5, 3]
    assert sorted(number for number, _ in pairs) == list(range(N_IMAGES))
    assert all(label == number % 3 for number, label in pairs)
    assert [int(Path(name).stem) for name in images.sample_names()] == [number for number, _ in pairs]
    assert read(images.evaluation())[0] == pairs == sorted(pairs, key=lambda pair: (pair[1], pair[0]))


def test_a_training_epoch_depends_on_seed_and_epoch_only(root):
    first, sizes = read(folder(root).training_epoch(seed=1, epoch=4))
    assert sizes == [5, 5, 5, 5]  # 3 images are dropped
    assert len(set(first)) == 20
    assert all(label == number % 3 for number, label in first)
    images = folder(root)
    others = [read(images.training_epoch(*seed_and_epoch))[0] for seed_and_epoch in ((1, 3), (2, 4), (1, 5))]
    assert read(images.training_epoch(seed=1, epoch=4))[0] == first
    assert first not in others
    assert len({frozenset(pairs) for pairs in (first, *others)}) > 1  # other images are dropped


@pytest.mark.parametrize("augmentation", ["pad_crop", "random_resized_crop"])
def test_augmentation_can_be_replayed_and_differs_between_epochs(root, augmentation):
    def pixels(epoch, augmentation=augmentation):
        images = folder(root, augmentation=augmentation, workers=2)
        return np.concatenate([batch[0] for batch in batches(images.training_epoch(seed=1, epoch=epoch))])

    first = pixels(1)
    assert first.shape == (20, 3, 8, 8)
    np.testing.assert_array_equal(first, pixels(1))
    assert not np.array_equal(first, pixels(2))
    assert not np.array_equal(first, pixels(1, "none"))


def test_images_are_normalised_and_channels_come_first(root):
    images, _ = batches(folder(root).evaluation())[0]
    assert (images.shape, images.dtype) == ((5, 3, 8, 8), np.float32)
    np.testing.assert_allclose(images[0, :, :, :4], (0 - 10) / 2)
    np.testing.assert_allclose(images[0, :, :, 4:], (5 - 10) / 2)


def test_resize_cuts_the_centre_of_a_larger_image(tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, 20:40] = 200
    Image.fromarray(pixels).save(tmp_path / "train" / "a" / "1.jpg", quality=95)
    ((images, _),) = batches(folder(tmp_path, image_size=16, resize=True).evaluation())
    assert images.shape == (1, 3, 16, 16)
    assert images[0, :, :, 6:10].mean() == pytest.approx((200 - 10) / 2, abs=3)


@needs.ANY_NAME
def test_images_are_counted_and_other_files_are_not(tmp_path):
    for name in ("a/1.png", "a/2.JPEG", "b/1.jpg", "b/notes.txt", "b/" + os.fsdecode(b"\xff.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert read_image_tree(tmp_path)[:3] == (["a", "b"], 4, [".JPEG", ".jpg", ".png"])


def test_what_only_looks_like_an_image_or_a_class_is_never_read(root, tmp_path):
    """Numbers and labels stay right beside it; hidden names sort before the images, ``x.png`` among them."""
    whole = folder(root)
    shutil.copytree(root / "train", tmp_path / "train")
    for name in ("10/.png", "10/._000.png", "9/.a.png", "ant/..png", "ant/._b.BMP", ".hidden/1.png", "@eaDir/1.png"):
        (tmp_path / "train" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "train" / name).write_bytes(b"no image")
    for name in ("10/005.png", "ant/000.png", "ant/zzz.png"):
        (tmp_path / "train" / name).mkdir()
    images = folder(tmp_path)
    assert (images.classes, images.n_images) == (["10", "9", "ant"], N_IMAGES)
    assert read(images.evaluation()) == read(whole.evaluation())
    assert images.sample_names() == whole.sample_names()
    assert read(images.training_epoch(1, 4)) == read(whole.training_epoch(1, 4))
    assert images.digest() == whole.digest()
    notes = "passed over, because training reads only .jpg, .jpeg, .png, .bmp: 1 .txt"
    assert checked(tmp_path, status=0) == [f"{N_IMAGES} colour", notes]


def test_images_of_other_formats_are_named_where_nothing_else_is_there(tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    for name in ("1.webp", "2.WEBP", "3.tif", "notes.txt"):
        (tmp_path / "train" / "a" / name).write_bytes(b"")
    with pytest.raises(DataError, match=r"'a' in .* has no images \(\.jpg.*\) but 1 \.tif, 1 \.txt, 2 \.webp; add"):
        read_image_tree(tmp_path / "train")
    assert (
        "holds no images (.jpg, .jpeg, .png, .bmp) but 1 .tif, 1 .txt, 2 .webp"
        in dimred_here("data", "check", tmp_path, status=2).stderr
    )
    Image.new("RGB", (4, 4)).save(tmp_path / "train" / "a" / "4.png")
    said = ["1 colour", "passed over, because training reads only .jpg, .jpeg, .png, .bmp: 1 .tif, 1 .txt, 2 .webp"]
    assert checked(tmp_path, status=0) == said


def test_pad_crop_sees_images_at_the_size_at_which_they_are_evaluated(tmp_path):
    """The classes differ by where in the image they are bright, which a crop of the whole image would not show."""
    (tmp_path / "train" / "a").mkdir(parents=True)
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[20:44, 20:44] = 250
    Image.fromarray(pixels).save(tmp_path / "train" / "a" / "1.png")
    images = folder(tmp_path, image_size=16, resize=True, augmentation="pad_crop", batch_size=1)
    ((evaluated, _),) = batches(images.evaluation())
    bright = (evaluated > 60).sum()
    for epoch in range(1, 9):
        ((trained, _),) = batches(images.training_epoch(1, epoch))
        assert trained.shape == (1, 3, 16, 16)
        assert (trained > 60).sum() == bright  # it is moved by 2 pixels at most


@pytest.mark.parametrize(("options", "pad"), [({}, 2), ({"pad": 4, "flip": True}, 4)])
def test_pad_crop_moves_an_image_by_up_to_pad_pixels_and_flips_half_if_asked(
    options: dict[str, object], pad: int, tmp_path: Path
) -> None:
    (tmp_path / "train" / "a").mkdir(parents=True)
    pixels = np.zeros((20, 20, 3), np.uint8)
    pixels[10, 4] = 250  # 4 and 15 are mirror images
    for number in range(8):
        Image.fromarray(pixels).save(tmp_path / "train" / "a" / f"{number}.png")
    images = folder(tmp_path, image_size=20, augmentation="pad_crop", batch_size=8, **options)
    places = []
    for epoch in range(1, 21):
        ((trained, _),) = batches(images.training_epoch(1, epoch))
        places += [np.argwhere(image[0] > 100)[0] for image in trained if (image[0] > 100).any()]
    rows, columns = np.transpose(places)
    assert set(rows - 10) == set(range(-pad, pad + 1))
    is_flipped = columns > 4 + pad
    assert set(columns[~is_flipped] - 4) <= set(range(-pad, pad + 1))
    assert set(columns[is_flipped] - 15) <= set(range(-pad, pad + 1))
    assert (0.35 < is_flipped.mean() < 0.65) if "flip" in options else not is_flipped.any()


def test_an_image_smaller_than_the_crop_is_named_at_once(tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    for number, side in enumerate((16, 8)):
        Image.new("RGB", (side, side)).save(tmp_path / "train" / "a" / f"{number}.png")
    images = folder(tmp_path, image_size=16, augmentation="pad_crop", batch_size=2)
    with pytest.raises(DataError, match=r"too small for data\.augmentation 'pad_crop': set data\.resize=true"):
        list(read_batches(lambda: images.training_epoch(1, 1), wait=lambda _: pytest.fail("reads it again")))
    resized = folder(tmp_path, image_size=16, augmentation="pad_crop", batch_size=2, resize=True)
    ((images, _),) = batches(resized.training_epoch(1, 1))
    assert images.shape == (2, 3, 16, 16)


def test_errors_name_the_folder(root, tmp_path):
    with pytest.raises(DataError, match=r"the data folder .*nowhere. does not exist"):
        read_image_tree(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"has no class folders"):
        read_image_tree(tmp_path)
    (tmp_path / "train" / "empty").mkdir(parents=True)
    with pytest.raises(DataError, match=r"class 'empty' in .* has no images"):
        read_image_tree(tmp_path / "train")


@needs.ANY_NAME
@pytest.mark.parametrize(("name", "odd"), [(b"\xfc", "train"), ("ü".encode(), "train/\udcfc")])
def test_a_folder_that_mindspore_cannot_name_is_named(name, odd, root, tmp_path):
    data = shutil.copytree(root, tmp_path / os.fsdecode(name))
    (data / "train" / "ant").rename(data / "train" / (Path(odd).name if odd != "train" else "ant"))
    with pytest.raises(DataError, match=r"has the folder .*, whose name is not UTF-8") as refused:
        folder(data)
    assert repr(str(data / odd)) in str(refused.value)


@pytest.mark.slow
def test_in_a_locale_without_utf_8_the_locale_is_named_and_not_the_folder(root, tmp_path):
    data = shutil.copytree(root, tmp_path / "ü")
    code = (
        "import sys; from pathlib import Path; from dimred.data.image_folder import ImageFolder\n"
        "ImageFolder(Path(sys.argv[1]), image_size=8, mean=[0] * 3, std=[1] * 3, batch_size=2)"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run(sys.executable, "-c", code, data / "train", environment=plain, status=1)
    assert "whose name is UTF-8, but in this locale Python reads names as ascii; set LC_ALL=C.UTF-8, or " in done.stderr
    assert run(sys.executable, "-c", code, data / "train", environment=plain | {"PYTHONUTF8": "1"}).returncode == 0


def test_classes_that_do_not_fit_are_named(root):
    for n_classes in (3, 1001):
        check_classes(root, {"train": ["cat", "dog", "emu"], "val": ["cat", "dog", "emu"]}, n_classes)
    said = (
        r"has 3 classes, .* n_classes 2: raise it for a new network; if WEIGHTS were trained with 2, this DATA does not"
    )
    with pytest.raises(DataError, match=said):
        check_classes(root, {"train": ["cat", "dog", "emu"]}, 2)
    with pytest.raises(DataError, match=r"'train' in .* has a class 'cat', and 'val' does not .classes that differ: 2"):
        check_classes(root, {"train": ["cat"], "val": ["dog"]}, 3)


@needs.ANY_NAME
def test_class_folders_that_look_alike_are_told_apart_by_their_code_points(tmp_path: Path) -> None:
    one, other = "caf\xe9", "cafe\u0301"
    for name in (one, other):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "train" / name / "1.png")
    said = r"has a class 'cafe\u0301' \('cafe\\u0301'\), and 'val' does not"
    with pytest.raises(DataError, match=said):
        check_classes(tmp_path, {"train": [other], "val": [one]}, 1)
    said = r"in two Unicode forms, 'cafe\\u0301' and 'caf\\xe9'; move the images"
    with pytest.raises(DataError, match=said):
        folder(tmp_path)


def test_without_a_configuration_data_must_have_the_classes_of_imagenet(root, tmp_path: Path) -> None:
    command = ("train", "stage-1", "--device-target", "CPU", "--dry-run")
    refused = dimred_here(*command, root, status=2).stderr
    assert "which is not ImageNet with its 1,000 classes: it has 3 class folders in train, and its" in refused
    assert "pixels. Give a recipe (" in refused
    assert "dimred init writes one, in which you set model.n_classes and data.image_size" in refused
    own = dimred_here(*command, tmp_path, "--dataset", "my_data:samples", status=2).stderr
    assert "it has 0 class folders in train. Give" in own
    unbegun = dimred_here(*command, root, "--out", tmp_path, "--resume", status=2).stderr
    assert "which is not ImageNet with its 1,000 classes" in unbegun
    dimred_here(*command, root, "--config", "digits", status=0)
    for number in range(1000):
        (tmp_path / "train" / f"n{number:08d}").mkdir(parents=True)
    assert "imagenet" in dimred_here(*command, tmp_path, status=0).stdout


def test_spare_batches_go_on_in_orders_that_no_epoch_has(root):
    images = folder(root, accumulation=2)
    spare = images.spare_batches(1)
    pairs, _ = read(folder(root).training_epoch(1, 999_999))
    first = [label for _ in range(4) for label in next(spare)[1].asnumpy().tolist()]
    assert first == [label for _, label in pairs]
    assert len(next(spare)[1]) == 5  # those of the next order
    assert list(folder(root, batch_size=50).spare_batches(1)) == []


@pytest.fixture
def jpegs(tmp_path: Path) -> Path:
    """Write real JPEGs as ImageNet has them: capital suffixes, grey, CMYK, and a PNG in disguise."""
    write_imagenet_tree(tmp_path, n_classes=2, train=4, val=1)
    disguised = io.BytesIO()
    Image.new("RGBA", (40, 30), (9, 9, 9, 9)).save(disguised, "PNG")
    (tmp_path / "train" / "n00000000" / "disguised.jpeg").write_bytes(disguised.getvalue())
    return tmp_path


def checked(tree: Path, status: int) -> list[str]:
    return dimred_here("data", "check", tree, "--workers", 2, status=status).stdout.splitlines()


def test_grey_cmyk_and_disguised_images_become_three_channels_and_are_counted(jpegs: Path) -> None:
    assert split_folder(jpegs, "val") == jpegs / "validation_preprocess"
    images = folder(jpegs, augmentation="random_resized_crop", resize=True, batch_size=3)
    for readable in (images.evaluation(), images.training_epoch(1, 1)):
        assert [batch[0].shape for batch in batches(readable)] == 3 * [(3, 3, 8, 8)]
    assert checked(jpegs, status=0) == ["2 CMYK, 6 colour, 2 grey, 1 other"]


def test_images_behind_links_to_folders_are_checked_and_a_loop_ends(jpegs: Path, tmp_path_factory) -> None:
    linked = tmp_path_factory.mktemp("linked")
    (linked / "train").symlink_to(jpegs / "train")
    (jpegs / "train" / "n00000000" / "up").symlink_to(jpegs / "train")
    (jpegs / "train" / "n00000001" / "n00000001_2.JPEG").write_bytes(b"junk")
    damaged, counts = checked(linked, status=1)
    assert damaged == str(linked / "train" / "n00000001" / "n00000001_2.JPEG")
    assert "1 damaged" in counts


@pytest.mark.parametrize(
    ("name", "mode"), [("WEBP", "RGB"), ("TIFF", "RGB"), ("TIFF", "F"), ("PPM", "L"), ("ICO", "RGB")]
)
def test_what_a_misnamed_image_holds_is_damaged_in_a_check_if_mindspore_cannot_decode_it(
    name: str, mode: str, jpegs: Path
) -> None:
    is_decoded = (name, mode) in (("TIFF", "RGB"), ("PPM", "L"))
    path = jpegs / "train" / "n00000000" / "disguised.jpeg"
    Image.new(mode, (40, 30)).save(path, name)
    assert (str(path) in checked(jpegs, status=0 if is_decoded else 1)) != is_decoded
    images = folder(jpegs, resize=True, batch_size=9)
    if is_decoded:
        assert batches(images.evaluation())
    else:
        with pytest.raises(DataError, match=r"disguised\.jpeg can't be read as an image"):
            list(read_batches(images.evaluation))


def test_gifs_which_mindspore_cannot_decode_are_no_images(jpegs: Path, tmp_path: Path) -> None:
    Image.new("P", (40, 30)).save(tmp_path / "x.gif")
    content = (tmp_path / "x.gif").read_bytes()
    (jpegs / "train" / "n00000000" / "disguised.jpeg").write_bytes(content)
    assert any("disguised.jpeg" in line for line in checked(jpegs, status=1))
    (jpegs / "train" / "only_gifs").mkdir()
    (jpegs / "train" / "only_gifs" / "x.gif").write_bytes(content)
    with pytest.raises(DataError, match=r"class 'only_gifs' in .* has no images"):
        folder(jpegs)


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: data[:9], lambda data: b"", lambda data: b"junk" * 99]
)
def test_damaged_images_stop_or_are_replaced_and_are_named(jpegs: Path, damage, monkeypatch, tmp_path_factory) -> None:
    here = tmp_path_factory.mktemp("here")  # where MindSpore leaves a copy of what it can't decode
    (here / "abnormal_image.bmp").write_text("my own")
    monkeypatch.chdir(here)
    path = jpegs / "train" / "n00000001" / "n00000001_2.JPEG"
    path.write_bytes(damage(path.read_bytes()))
    options = {"augmentation": "random_resized_crop", "resize": True, "batch_size": 3}
    images, replaced = folder(jpegs, **options), folder(jpegs, damaged="replace", **options)
    for make in (lambda: images.training_epoch(1, 1), images.evaluation):
        with pytest.raises(DataError, match=r"n00000001_2\.JPEG can't be read as an image; restore it"):
            list(read_batches(make, wait=lambda _: pytest.fail("waits for a file that is there")))
    assert len(batches(replaced.training_epoch(1, 1))) == 3
    assert [path.name for path in here.iterdir()] == ["abnormal_image.bmp"]
    assert checked(jpegs, status=1)[:-1] == [str(path)]


def saved(side: int, kind: str, **options: object) -> bytes:
    """Return an image file with a thumbnail, which has an end marker of its own."""
    file, exif = io.BytesIO(), Image.Exif()
    pixels = np.random.default_rng(1).integers(0, 255, (side, side, 3), np.uint8)
    Image.fromarray(pixels[:8, :8]).save(file, "JPEG")
    exif[0x927C] = file.getvalue()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options, **({"exif": exif} if kind == "JPEG" else {}))
    return file.getvalue()


@pytest.mark.parametrize(("kind", "options"), [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("BMP", {})])
def test_a_file_that_is_cut_anywhere_is_damaged_in_training_and_in_a_check(kind: str, options, jpegs: Path) -> None:
    """MindSpore alone takes most cut JPEGs of 32 pixels, waits for ever for some, and dies of others."""
    path = jpegs / "train" / "n00000000" / "disguised.jpeg"
    whole = saved(32, kind, **options)
    for end in (*range(20, len(whole), len(whole) // 3), len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"disguised\.jpeg can't be read as an image"):
            batches(folder(jpegs, image_size=32, resize=True).evaluation())
        assert check_images(path.parent, 1).kinds[path] == "damaged"
    path.write_bytes(whole + b"\xff\xda what a camera puts behind the image")
    assert batches(folder(jpegs, image_size=32, resize=True).evaluation())
    assert check_images(path.parent, 1).kinds[path] == "colour"


def test_a_cut_image_is_replaced(jpegs: Path) -> None:
    path = jpegs / "train" / "n00000000" / "disguised.jpeg"
    path.write_bytes(saved(32, "JPEG")[:-200])
    ((images, _),) = batches(folder(jpegs, resize=True, damaged="replace", batch_size=9).evaluation())
    assert len(images) == 9


@pytest.mark.slow
def test_what_pillow_alone_takes_for_an_attack_is_read_in_training_and_in_a_check(tmp_path: Path) -> None:
    """More than 179 million pixels, and more than a million characters."""
    text, in_class = PngInfo(), tmp_path / "train" / "a"
    in_class.mkdir(parents=True)
    text.add_text("about", "x" * 3_000_000, zip=True)
    Image.new("L", (14_000, 13_900)).save(in_class / "1.jpeg")
    Image.new("L", (9, 9)).save(in_class / "2.png", pnginfo=text)
    images = folder(tmp_path, resize=True, batch_size=2)
    assert [batch[0].shape for batch in batches(images.evaluation())] == [(2, 3, 8, 8)]
    assert len([*images.sizes()]) == 1
    assert checked(tmp_path, status=0) == ["2 grey"]
