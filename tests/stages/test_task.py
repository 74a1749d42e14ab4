"""Checks of the data, and of a user's own loss and metric, before anything expensive."""

import os
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.config import StageOneConfig, StageTwoConfig, config_text
from dimred.data.image_folder import size_of_an_image
from dimred.data.image_tree import write_image_tree
from dimred.distributed.ranks import Ranks
from dimred.errors import ConfigError, DataError, DimredError
from dimred.stages.parent import check_same_task
from dimred.stages.task import (
    build_data,
    build_loss,
    build_network,
    build_scores,
    build_splits,
    check_scores,
    with_workers_of_host,
)
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
    check_same_task(two, weights)  # stage 1's loss is not known
    (tmp_path / "config.yaml").write_text(config_text(StageOneConfig.model_validate(TASK | {"metric": None})))
    check_same_task(two, weights)
    with pytest.raises(
        ConfigError, match=r"loss is null, cross entropy, but WEIGHTS .* trained with mindspore\.nn:MSE"
    ):
        check_same_task(StageTwoConfig.model_validate(TASK | {"loss": None}), weights)


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
    check_same_task(StageTwoConfig.model_validate(tiny_task.TASK | trained), weights)
    with pytest.raises(ConfigError) as refused:
        check_same_task(StageTwoConfig.model_validate(tiny_task.TASK | typed), weights)
    assert str(refused.value).startswith(value)
    assert str(refused.value).endswith(remedy)


def test_a_run_of_a_host_with_more_processors_is_read_here() -> None:
    config = StageOneConfig.model_validate({"data": {"workers": 1_000_000}})
    with pytest.raises(ConfigError, match=r"data\.workers is 1000000, but MindSpore takes no more"):
        build_data(config.data, Path(), "train")
    assert with_workers_of_host(config).data.workers == os.cpu_count()


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


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"image_size": 21, "augmentation": "pad_crop"}, r"image_size is 21, but .* 'pad_crop' makes them 20 at most"),
        ({"workers": 100_000}, r"data\.workers is 100000, but .*; --set data\.workers=\d+$"),
    ],
)
def test_what_no_epoch_could_read_is_refused_before_one(data: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(DimredError, match=said) as refused:
        build_splits(StageOneConfig.model_validate({"data": changed}), data, ["train"])
    assert refused.value.exit_status == 2


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
    write_image_tree(tmp_path / "data", [("train", "cat", "one", np.zeros((16, width, 3)))])
    for changed in ({"augmentation": "pad_crop", "image_size": 12}, {"augmentation": "none", "image_size": 32}):
        config = StageOneConfig.model_validate({"data": {"resize": False, "workers": 1, "batch_size": 1} | changed})
        said = rf"data\.resize is false, but the images have {width} x 16 pixels and data\.image_size is "
        with pytest.raises(DataError, match=said) as refused:
            build_splits(config, tmp_path / "data", ["train"])
        assert str(refused.value).endswith(remedy)


def test_a_damaged_image_has_no_size(data: Path) -> None:
    assert size_of_an_image(data / "train") == (20, 16)
    for image in (data / "train").glob("*/*"):
        image.write_bytes(b"nothing")
    assert size_of_an_image(data / "train") is None
