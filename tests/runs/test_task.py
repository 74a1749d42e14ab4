"""Checks of a network, and of a user's own loss and metric, before anything expensive."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from dimred.config import StageOneConfig, StageTwoConfig
from dimred.errors import ConfigError, DataError, DimredError
from dimred.runs.score_checks import check_scores
from dimred.runs.splits import build_data
from dimred.runs.steps import build_loss, build_scores
from dimred.runs.task import build_network, build_task
from dimred.stages.parent import StageOneRun
from tests.helpers import tiny_task
from tests.helpers.tiny_regression import HERE, TASK

NETWORK = build_network(StageOneConfig.model_validate(TASK))
MEASURED = (
    "on the first batch of 'val' (inputs Float32 (6, 3) and Float32 (6, 2), outputs (6, 2), labels Float32 (6, 2))"
)


def check(**options: Any) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    config = StageOneConfig.model_validate(TASK | options)
    images = {split: build_data(config.data, Path(), split) for split in ("train", "val")}
    check_scores(config, NETWORK, build_scores(config), images)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_val_is_measured_by_the_loss_that_is_trained(smoothing: float) -> None:
    """-(1 - s) log p(label) - s mean(log p) for each sample; their mean is the loss of a training step."""
    config = StageOneConfig.model_validate(tiny_task.TASK | {"label_smoothing": smoothing})
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(6, 3)).astype(np.float32), rng.integers(0, 3, 6).astype(np.int32)
    values, counted = build_scores(config).loss(Tensor(logits), Tensor(labels))
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = -(1 - smoothing) * log_p[np.arange(6), labels] - smoothing * log_p.mean(1)
    np.testing.assert_allclose(values.asnumpy(), expected, rtol=1e-5)
    assert counted.asnumpy().all()
    trained = build_loss(config, nn.Identity())(Tensor(logits), Tensor(labels))
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
        ({"loss": f"{HERE}:NeverMean"}, "gives the shape (6, 2) with reduction='mean'; it must give one number, ()"),
        (
            {"loss": f"{HERE}:AlwaysMean"},
            f"{MEASURED}: it gives a single number for a batch; it must give",
        ),
        ({"metric": f"{HERE}:pairs"}, "gives the shape (6, 6), which is more numbers than there are outputs or labels"),
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
    with pytest.raises(ConfigError, match=r"model\.name is .*:network', which fails on the inputs of the first batch"):
        check(data=tiny_task.TASK["data"], loss=None, metric=None)


def test_stage_2_goes_on_with_the_loss_of_stage_1() -> None:
    two = StageTwoConfig.model_validate(TASK)
    StageOneRun(Path("network-1_4.ckpt"), {}).check_continued_by(two)  # stage 1's loss is not known
    one = StageOneRun(Path("network-1_4.ckpt"), {}, config=StageOneConfig.model_validate(TASK | {"metric": None}))
    one.check_continued_by(two)
    with pytest.raises(ConfigError, match=r"loss is null, but WEIGHTS .* another value; --set 'loss=.mindspore\.nn:M"):
        one.check_continued_by(StageTwoConfig.model_validate(TASK | {"loss": None}))


@pytest.mark.parametrize(
    ("trained", "typed", "value", "remedy"),
    [
        ({"label_smoothing": 0.25}, {"label_smoothing": 0.1}, "label_smoothing is 0.1, but", "'label_smoothing=0.25'"),
        ({"data": {}}, {"data": {"std": [9, 8, 7]}}, "data.std is [9.0, ", "--set 'data.std=[58.395, 57.12, 57.375]'"),
    ],
)
def test_stage_2_goes_on_with_the_label_smoothing_and_the_normalisation_of_stage_1(
    trained: dict[str, Any], typed: dict[str, Any], value: str, remedy: str
) -> None:
    """The size of the images may be another, on which a network may be brought to its end."""
    one = StageOneRun(Path("network-1_4.ckpt"), {}, config=StageOneConfig.model_validate(tiny_task.TASK | trained))
    one.check_continued_by(StageTwoConfig.model_validate(tiny_task.TASK | trained | {"data": {"image_size": 288}}))
    with pytest.raises(ConfigError) as refused:
        one.check_continued_by(StageTwoConfig.model_validate(tiny_task.TASK | typed))
    assert str(refused.value).startswith(value)
    assert str(refused.value).endswith(remedy)


def build_fixed() -> nn.Cell:
    return tiny_task.network(5)


@pytest.mark.parametrize("n_classes", [3, 5])
def test_a_network_with_another_number_of_outputs_than_classes_is_refused(n_classes: int) -> None:
    task = tiny_task.TASK | {"model": {"name": f"{__name__}:build_fixed", "n_classes": n_classes}}
    config = StageOneConfig.model_validate(task)
    network = build_network(config)
    images = {split: build_data(config.data, Path(), split) for split in ("train", "val")}
    if n_classes == 5:
        check_scores(config, network, build_scores(config), images)
        return
    with pytest.raises(ConfigError, match=r"build_fixed', which on the first batch of 'train' .* gives 5 outputs, but"):
        check_scores(config, network, build_scores(config), images)
    own = config.model_copy(update={"loss": "mindspore.nn:MSELoss"})  # still measured by the accuracy
    with pytest.raises(
        ConfigError, match=r"n_classes is 3; give the number of classes to a parameter called n_classes"
    ):
        check_scores(own, network, build_scores(config), images)


def test_an_own_network_is_tried_on_images_too(data: Path) -> None:
    task = {"model": {"name": f"{__name__}:build_for_images", "n_classes": 2}, "data": {"image_size": 4, "workers": 1}}
    config = StageOneConfig.model_validate(task)
    images = {split: build_data(config.data, data, "train") for split in ("train", "val")}
    with pytest.raises(
        ConfigError, match=r"outputs \(2, 7\), labels Int32 \(2,\)\) gives 7 outputs, but model\.n_classes is 2"
    ):
        check_scores(config, build_network(config), build_scores(config), images)


def build_for_images() -> nn.Cell:
    return nn.SequentialCell(nn.Flatten(), nn.Dense(48, 7))


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        ({"casts": {"nothing": "float32"}}, "precision.casts has 'nothing', which matches no cell"),
        ({"level": "O2", "dtype": "bfloat16"}, "precision.dtype is 'bfloat16', but the device CPU can't"),
    ],
)
def test_a_precision_that_does_not_fit_is_named_by_its_key(precision: dict[str, Any], said: str) -> None:
    config = StageOneConfig.checked({"model": {"name": "resnet_small", "n_classes": 10}, "precision": precision})
    with pytest.raises(ConfigError) as refused:
        build_network(config)
    assert str(refused.value).startswith(said)


def conv(n_classes: int) -> nn.Cell:
    return nn.SequentialCell(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dense(4 * 4 * 4, n_classes))


def images_of(shape: tuple[int, ...], dtype: str, label: object) -> Callable[..., list[tuple[np.ndarray, object]]]:
    return lambda data, split, seed: 6 * [(np.ones(shape, dtype), label)]


fitting = images_of((3, 4, 4), "float64", 1)
channels_last = images_of((4, 4, 3), "float32", 1)
whole_numbers = images_of((3, 4, 4), "uint8", 1)
boxed_labels = images_of((3, 4, 4), "float32", [1])


OF_FIRST_LAYER = r": its first layer, 0 \(Conv2d\), takes floats \(n, 3, height, width\); give it that \("


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fitting", None),
        ("channels_last", r"first batch of 'train', Float32 \(2, 4, 4, 3\)" + OF_FIRST_LAYER),
        ("whole_numbers", r"first batch of 'train', UInt8 \(2, 3, 4, 4\)" + OF_FIRST_LAYER),
        (
            "boxed_labels",
            r"gives labels of the shape \(1,\), but for the outputs on the first batch .* labels Int32 \(2, 1\)\) "
            r"a label must have the shape \(\); give a sample's class as one number",
        ),
    ],
)
def test_samples_that_the_network_does_not_take_are_told_in_one_line(name: str, said: str | None) -> None:
    task = {
        "model": {"name": f"{__name__}:conv", "n_classes": 3},
        "data": {"dataset": f"{__name__}:{name}", "batch_size": 2},
    }
    config = StageOneConfig.model_validate(task)
    images = {split: build_data(config.data, Path(), split) for split in ("train", "val")}
    with nullcontext() if said is None else pytest.raises(DimredError, match=said) as refused:
        check_scores(config, build_network(config), build_scores(config), images)
    if refused is not None:
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("network", "options", "said"),
    [
        (
            "lenet",
            {},
            "'lenet', which takes images of 1 channel and 32 x 32 pixels, but the data give 3 x 224 x 224",
        ),
        (
            "lenet",
            {"mean": [1.0], "std": [1.0]},
            r"data\.mean and data\.std have 1 value, but .* class folders .* to 3",
        ),
        ("resnet_small", {"image_size": 20}, None),
    ],
)
def test_images_that_a_built_in_network_does_not_take_are_refused(
    network: str, options: dict[str, Any], said: str | None, data: Path
) -> None:
    task = {"model": {"name": network, "n_classes": 10}, "data": {"batch_size": 1, "workers": 1} | options}
    config = StageOneConfig.model_validate(task)
    with nullcontext() if said is None else pytest.raises(DataError, match=said):
        build_task(config, data, splits=["train"])
