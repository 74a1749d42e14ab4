"""What is wrong with the splits of DATA is refused or warned of before anything expensive."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from dimred.config import StageOneConfig
from dimred.data.batches import Batches
from dimred.data.digits import write_image_tree
from dimred.data.image_folder import ImageFolder
from dimred.distributed.ranks import Ranks
from dimred.errors import DataError
from dimred.runs.splits import build_data, build_splits


def test_more_workers_than_processors_are_capped_and_named(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    config = StageOneConfig.model_validate({"data": {"workers": 100_000, "image_size": 16}})
    for path in (data / "train").glob("*/*"):
        for number in range(3):
            path.with_name(f"{number}.png").write_bytes(path.read_bytes())
    images = build_splits(config, data, ["train"])["train"]
    assert images.workers == os.cpu_count()
    said = f"data.workers is 100000; MindSpore takes at most {os.cpu_count()}, one per processor"
    assert caplog.messages == [said]
    assert sum(len(labels) for _, labels in images.evaluation().create_tuple_iterator()) == images.n_images == 8


def test_a_rank_for_which_no_image_is_left_measures_none(data: Path) -> None:
    class Rank(Ranks):
        group_size = 3

        def __init__(self, rank: int) -> None:
            self.rank = rank

    settings = {"image_size": 16, "batch_size": 2, "augmentation": "pad_crop", "workers": 1}
    config = StageOneConfig.model_validate({"data": settings}).data
    of_ranks = [build_data(config, data, "train", Rank(rank)).evaluation() for rank in range(3)]
    assert [sum(len(labels) for _, labels in each.create_tuple_iterator()) for each in of_ranks] == [1, 1, 0]


@pytest.mark.parametrize(("width", "remedy"), [(16, ", or data.image_size=16 if all have that size"), (20, "=true")])
def test_images_of_a_size_that_nothing_changes_are_refused(width: int, remedy: str, tmp_path: Path) -> None:
    for name, size in (("ant", (12, 12)), ("cat", (16, width))):  # the first class alone would not show it
        write_image_tree(tmp_path / name, [("train", name, "one", np.zeros((*size, 3)))])
    (tmp_path / "cat" / "train" / "cat").rename(tmp_path / "ant" / "train" / "cat")
    config = {"resize": False, "workers": 1, "batch_size": 1, "augmentation": "pad_crop", "image_size": 12}
    said = rf"data\.resize is false, but .* has images of {width} x 16 pixels, and data\.image_size is 12"
    with pytest.raises(DataError, match=said) as refused:
        build_splits(StageOneConfig.model_validate({"data": config}), tmp_path / "ant", ["train"])
    assert str(refused.value).endswith(remedy)


def test_data_without_a_test_split_name_the_key_that_chooses_another(data: Path) -> None:
    config = StageOneConfig.model_validate({"data": {"eval_split": "test"}})
    said = r"^DATA is '.*', which has no folder 'test'; expected DATA/<split>/<class>/<image>, and data\.eval_split"
    with pytest.raises(DataError, match=said):
        build_splits(config, data, ["test"])


def test_what_is_passed_over_is_named_and_what_programs_leave_is_not(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cat = data / "train" / "cat"
    for name in ("1.webp", "2.tif", "3.TIF", "4.heic", "notes.txt", "._one.png", ".hidden.png"):
        (cat / name).write_bytes(b"something")
    for folder in (cat / "more", cat / "x.png", data / "train" / ".ipynb_checkpoints", data / "train" / "@eaDir"):
        folder.mkdir()
        (folder / "one.png").write_bytes((cat / "one.png").read_bytes())
    config = StageOneConfig.model_validate({"data": {"image_size": 16, "workers": 1}})
    images = build_splits(config, data, ["train"])["train"]
    assert (images.classes, images.n_images) == (["cat", "dog"], 2)
    (said,) = caplog.messages
    assert (
        f"{str(data / 'train')!r}: 1 .heic, 2 .tif, 1 .txt, 1 .webp, 1 folder passed over; only images in the class"
        in said
    )


def test_a_damaged_image_has_no_size(data: Path) -> None:
    images = build_data(StageOneConfig().data, data, "train")
    assert isinstance(images, ImageFolder)
    assert list(images.sizes()) == 2 * [(20, 16)]
    (data / "train" / "cat" / "one.png").write_bytes(b"nothing")
    assert list(images.sizes()) == [(20, 16)]
    for config in ({"image_size": 16}, {"image_size": 20, "resize": False}):
        (data / "train" / "dog" / "one.png").write_bytes(b"nothing")
        build_splits(StageOneConfig.model_validate({"data": config}), data, ["train"])


class Drawn(list):
    """Samples with noise from a generator of their own, which several threads would share out as it comes."""

    def __init__(self) -> None:
        super().__init__(range(200))
        self.generator = np.random.default_rng(1)

    def __getitem__(self, number: int) -> tuple[object, ...]:
        noise = self.generator.normal()
        time.sleep(0.001)
        return np.float32([number, noise]), 0


def drawn(data: Path, split: str, seed: int | None) -> Drawn:
    return Drawn()


def test_own_data_are_read_by_one_thread_unless_the_configuration_says_otherwise() -> None:
    def built(**of_config: int) -> Batches:
        data = {"dataset": f"{__name__}:drawn", "batch_size": 8} | of_config
        return build_splits(StageOneConfig.model_validate({"data": data}), Path(), ["train"])["train"]

    def epoch() -> list[bytes]:
        batches = built().training_epoch(1, 1).create_tuple_iterator(output_numpy=True)
        return [inputs.tobytes() for inputs, _ in batches]

    assert epoch() == epoch()
    assert built(workers=2).workers == min(2, os.cpu_count())
