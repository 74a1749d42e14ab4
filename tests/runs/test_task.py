"""Checks of the data, and of a user's own loss and metric, before anything expensive."""

import os
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.config import StageOneConfig, StageTwoConfig, config_text
from dimred.data.image_folder import ImageFolder
from dimred.data.image_tree import write_image_tree
from dimred.distributed.ranks import Ranks
from dimred.errors import ConfigError, DataError, DimredError
from dimred.runs.steps import build_loss, build_scores, check_scores
from dimred.runs.task import (
    build_data,
    build_network,
    build_splits,
)
from dimred.stages.parent import StageOneRun
from tests.helpers import tiny_task
from tests.helpers.tiny_regression import HERE, TASK

NETWORK = build_network(StageOneConfig.model_validate(TASK))
MEASURED = "on the first batch of 'val' (inputs (6, 3) and (6, 2), outputs (6, 2), labels Float32 (6, 2))"


def check(**options: Any) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    settings = StageOneConfig.model_validate(TASK | options)
    images = {split: build_data(settings.data, Path(), split) for split in ("train", "val")}
    check_scores(settings, NETWORK, build_scores(settings), images)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_val_is_measured_by_the_loss_that_is_trained(smoothing: float) -> None:
    """-(1 - s) log p(label) - s mean(log p) for each sample; their mean is the loss of a training step."""
    settings = StageOneConfig.model_validate(tiny_task.TASK | {"label_smoothing": smoothing})
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(6, 3)).astype(np.float32), rng.integers(0, 3, 6).astype(np.int32)
    values, counted = build_scores(settings).loss(Tensor(logits), Tensor(labels))
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = -(1 - smoothing) * log_p[np.arange(6), labels] - smoothing * log_p.mean(1)
    np.testing.assert_allclose(values.asnumpy(), expected, rtol=1e-5)
    assert counted.asnumpy().all()
    trained = build_loss(settings, nn.Identity())(Tensor(logits), Tensor(labels))
    assert float(trained.asnumpy()) == pytest.approx(expected.mean(), rel=1e-5)


def test_mindspores_own_losses_are_accepted() -> None:
    check()
    check(loss="mindspore.nn:L1Loss", metric=f"{HERE}:absolute_error")


def test_a_loss_may_leave_labels_out() -> None:
    check(loss=f"{HERE}:Masked")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loss": "nowhere:loss"}, "loss is 'nowhere:loss', but 'nowhere' can't be imported"),
        ({"metric": f"{HERE}:number"}, "which returned int; it must return a function or a cell"),
        ({"loss": f"{HERE}:NeverMean"}, "gives the shape (6, 2) with reduction='mean'; it must be one number, ()"),
        ({"loss": f"{HERE}:AlwaysMean"}, f"{MEASURED} gives a single number for a batch; it must give one for each"),
        ({"metric": f"{HERE}:pairs"}, "gives the shape (6, 6), more numbers than there are outputs or labels"),
        ({"metric": f"{HERE}:broken_metric"}, f"metric is '{HERE}:broken_metric', which fails {MEASURED}: ValueError"),
        ({"metric": None}, "the labels are Float32 of the shape (6, 2), but only whole numbers can be counted as"),
    ],
)
def test_an_unusable_loss_or_metric_is_explained(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DimredError) as refused:
        check(**options)
    assert said in str(refused.value)
    assert refused.value.exit_status == 2


def test_a_network_that_does_not_take_the_data_is_named() -> None:
    with pytest.raises(ConfigError, match=r"model\.name is .*:network', which fails on the first batch of 'train'"):
        check(data=tiny_task.TASK["data"], loss=None, metric=None)


def test_stage_2_goes_on_with_the_loss_of_stage_1(tmp_path: Path) -> None:
    (tmp_path / "checkpoint_stage_1").mkdir()
    weights = tmp_path / "checkpoint_stage_1" / "network-1_4.ckpt"
    two = StageTwoConfig.model_validate(TASK)
    StageOneRun.open(weights).share().check_continued_by(two)  # stage 1's loss is not known
    (tmp_path / "config.yaml").write_text(config_text(StageOneConfig.model_validate(TASK | {"metric": None})))
    StageOneRun.open(weights).share().check_continued_by(two)
    with pytest.raises(
        ConfigError, match=r"loss is null, cross entropy, but WEIGHTS .* trained with mindspore\.nn:MSE"
    ):
        StageOneRun.open(weights).share().check_continued_by(StageTwoConfig.model_validate(TASK | {"loss": None}))


@pytest.mark.parametrize(
    ("trained", "typed", "value", "remedy"),
    [
        ({"label_smoothing": 0.25}, {"label_smoothing": 0.1}, "label_smoothing is 0.1, but", "'label_smoothing=0.25'"),
        ({"data": {}}, {"data": {"std": [9, 8, 7]}}, "data.std is [9.0, ", "--set 'data.std=[58.395, 57.12, 57.375]'"),
    ],
)
def test_stage_2_goes_on_with_the_label_smoothing_and_the_normalisation_of_stage_1(
    trained: dict[str, Any], typed: dict[str, Any], value: str, remedy: str, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint_stage_1").mkdir()
    weights = tmp_path / "checkpoint_stage_1" / "network-1_4.ckpt"
    (tmp_path / "config.yaml").write_text(config_text(StageOneConfig.model_validate(tiny_task.TASK | trained)))
    StageOneRun.open(weights).share().check_continued_by(StageTwoConfig.model_validate(tiny_task.TASK | trained))
    with pytest.raises(ConfigError) as refused:
        StageOneRun.open(weights).share().check_continued_by(StageTwoConfig.model_validate(tiny_task.TASK | typed))
    assert str(refused.value).startswith(value)
    assert str(refused.value).endswith(remedy)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    pixels = np.zeros((16, 20, 3))
    write_image_tree(tmp_path / "data", [("train", name, "one", pixels) for name in ("cat", "dog")])
    return tmp_path / "data"


def test_images_that_would_be_blown_up_are_named_and_no_others(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    build_splits(StageOneConfig(), data, ["train"])
    said = caplog.text
    assert "the images have 16 pixels on the shorter side, and data.image_size is 224" in said
    assert "about 196 times as many" in said
    assert "--set data.image_size=16" in said
    caplog.clear()
    for changed in ({"image_size": 32}, {"image_size": 20, "augmentation": "pad_crop"}):
        build_splits(StageOneConfig.model_validate({"data": changed}), data, ["train"])
    assert not caplog.messages


def test_more_workers_than_processors_are_capped_and_named(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    config = StageOneConfig.model_validate({"data": {"workers": 100_000, "image_size": 16}})
    for path in (data / "train").glob("*/*"):
        for number in range(3):
            path.with_name(f"{number}.png").write_bytes(path.read_bytes())
    images = build_splits(config, data, ["train"])["train"]
    assert images.workers == os.cpu_count()
    said = f"data.workers is 100000; MindSpore takes no more than this host's processors, {os.cpu_count()}"
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


@pytest.mark.parametrize("name", ["val", "validation_preprocess"])
def test_data_without_a_test_split_name_the_key_that_chooses_another(data: Path, name: str) -> None:
    (data / "train").rename(data / name)
    config = StageOneConfig.model_validate({"data": {"eval_split": "test"}})
    with pytest.raises(DataError, match=rf"no folder '.*test', only '.*{name}'.*--set data\.eval_split=val$"):
        build_splits(config, data, ["test"])
    (data / name).rename(data / "train")
    with pytest.raises(DataError, match=r"^DATA is '.*', which has no folder 'test'; expected DATA/<split>/<class>/"):
        build_splits(config, data, ["test"])


def test_a_folder_above_or_below_data_that_has_the_splits_is_named(data: Path) -> None:
    config = StageOneConfig.model_validate({"data": {"image_size": 16, "workers": 1, "batch_size": 1}})
    for wrong in (data.parent, data / "train"):
        said = f"DATA is '{wrong}', which has no folder 'train'; did you mean '{data}'\\?$"
        with pytest.raises(DataError, match=said):
            build_splits(config, wrong, ["train"])


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
    assert f"{str(data / 'train')!r}: 1 .heic, 2 .tif, 1 .webp, 1 folder passed over; only images in the class" in said


def test_a_damaged_image_has_no_size(data: Path) -> None:
    images = build_data(StageOneConfig().data, data, "train")
    assert isinstance(images, ImageFolder)
    assert list(images.sizes()) == 2 * [(20, 16)]
    (data / "train" / "cat" / "one.png").write_bytes(b"nothing")
    assert list(images.sizes()) == [(20, 16)]
    for config in ({"image_size": 16}, {"image_size": 20, "resize": False}):
        (data / "train" / "dog" / "one.png").write_bytes(b"nothing")
        build_splits(StageOneConfig.model_validate({"data": config}), data, ["train"])


def build_fixed() -> nn.Cell:
    return tiny_task.network(5)


@pytest.mark.parametrize("n_classes", [3, 5])
def test_a_network_with_another_number_of_outputs_than_classes_is_refused(n_classes: int) -> None:
    task = tiny_task.TASK | {"model": {"name": f"{__name__}:build_fixed", "n_classes": n_classes}}
    settings = StageOneConfig.model_validate(task)
    network = build_network(settings)
    images = {split: build_data(settings.data, Path(), split) for split in ("train", "val")}
    if n_classes == 5:
        check_scores(settings, network, build_scores(settings), images)
        return
    with pytest.raises(ConfigError, match=r"build_fixed', which on the first batch of 'train' .* gives 5 outputs, but"):
        check_scores(settings, network, build_scores(settings), images)
    own = settings.model_copy(update={"loss": "mindspore.nn:MSELoss"})  # still measured by the accuracy
    with pytest.raises(
        ConfigError, match=r"n_classes is 3; give the number of classes to a parameter called n_classes"
    ):
        check_scores(own, network, build_scores(settings), images)


def test_an_own_network_is_tried_on_images_too(data: Path) -> None:
    task = {"model": {"name": f"{__name__}:build_for_images", "n_classes": 2}, "data": {"image_size": 4, "workers": 1}}
    settings = StageOneConfig.model_validate(task)
    images = {split: build_data(settings.data, data, "train") for split in ("train", "val")}
    with pytest.raises(
        ConfigError, match=r"outputs \(2, 7\), labels Int32 \(2,\)\) gives 7 outputs, but model\.n_classes is 2"
    ):
        check_scores(settings, build_network(settings), build_scores(settings), images)


def build_for_images() -> nn.Cell:
    return nn.SequentialCell(nn.Flatten(), nn.Dense(48, 7))


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        ({"casts": {"nothing": "float32"}}, "precision.casts has 'nothing', which fits no cell"),
        ({"level": "O2", "dtype": "bfloat16"}, "precision.dtype is 'bfloat16', in which the device CPU can't"),
    ],
)
def test_a_precision_that_does_not_fit_is_named_by_its_key(precision: dict[str, Any], said: str) -> None:
    settings = StageOneConfig.checked({"model": {"name": "resnet_small", "n_classes": 10}, "precision": precision})
    with pytest.raises(ConfigError) as refused:
        build_network(settings)
    assert str(refused.value).startswith(said)
