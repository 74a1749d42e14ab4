"""The parts of a step check their arguments, and MindSpore's own and plain numbers are taken in their place."""

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import amp, nn
from mindspore.train import LossMonitor

import dimred
from dimred.errors import ConfigError
from dimred.train_step.parts import make_parts
from tests.helpers.commands import REPOSITORY
from tests.helpers.networks import TanhMLP, basis_for, image_batch
from tests.helpers.problems import batches, changed, tensors, values

NETWORK = TanhMLP()
WEIGHTS = NETWORK.trainable_params()
INF, NAN = float("inf"), float("nan")

REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    *((dimred.Clipping, (norm,), {}, "norm is .*; it must be a number above 0") for norm in (-1, 0, NAN, True)),
    *((dimred.EMA, (NETWORK, d), {}, "decay is .* at least 0 and below 1") for d in (2.0, 1, -0.1, NAN, "0.9")),
    (dimred.EMA, (0.9,), {}, r"network is 0\.9; it must be a cell"),
    (dimred.EMA, (NETWORK, 0.9), {"ramp": 3}, "ramp is 3; it must be True or False"),
    *((dimred.StaticLossScale, (s,), {}, "scale is .* above 0 and below 8.5") for s in (0, -4, INF, 2.0**126, None)),
    (dimred.StaticLossScale, (2, "no"), {}, "drop_overflow is 'no'; it must be True or False"),
    (dimred.DynamicLossScale, (0,), {}, "initial is 0; it must be a number above 0"),
    (dimred.DynamicLossScale, (), {"factor": 1}, r"factor is 1; it must be a number above 1 \(2 is usual\)"),
    (dimred.DynamicLossScale, (), {"window": 2.5}, r"window is 2\.5; it must be a whole number of at least 1"),
    (dimred.DynamicLossScale, (8,), {"largest": 4}, r"initial is 8; it must lie between smallest \(1\) and largest"),
    (dimred.with_precision, (NETWORK, "o2"), {}, "level is 'o2'; allowed: O0, O1, O2, O3"),
    (dimred.with_precision, (NETWORK, 2), {}, "level is 2; allowed: O0, O1, O2, O3"),
    (dimred.with_precision, (NETWORK,), {"dtype": "half"}, "dtype is 'half'; allowed: float16, bfloat16"),
    (dimred.with_precision, (NETWORK,), {"casts": {"out": "fp16"}}, r"casts\['out'\] is 'fp16'; allowed: float16"),
    (dimred.with_precision, (NETWORK,), {"keep_batch_norm": 1}, "keep_batch_norm is 1; it must be True, False"),
    (dimred.with_precision, ("resnet50",), {}, "network is 'resnet50'; it must be a cell"),
    (dimred.AdamW, (WEIGHTS,), {"beta1": 1.0}, "beta1 is 1.0; it must be a number of at least 0 and below 1"),
    (dimred.AdamW, (WEIGHTS,), {"beta2": -1}, "beta2 is -1; it must be"),
    (dimred.AdamW, (WEIGHTS,), {"eps": 0}, "eps is 0; it must be a number above 0"),
    (dimred.AdamW, (WEIGHTS,), {"weight_decay": -1e-4}, "weight_decay is -0.0001; it must be a number of at least 0"),
    *(
        (dimred.ScheduleFree, (WEIGHTS,), {"beta": beta}, f"beta is {beta!r}; it must be a number above 0 and below 1")
        for beta in (0, 1.0, -0.9, NAN, "0.9")
    ),
    (dimred.ScheduleFree, (WEIGHTS,), {"weight_decay": -1e-4}, "weight_decay is -0.0001; it must be a number of at"),
    # A graph rounds them to float32: these would train nothing, drop each step, or make every weight NaN.
    *((dimred.AdamW, (WEIGHTS,), {b: 1 - 1e-8}, f"{b} in float32 is 1.0; .* below 1") for b in ("beta1", "beta2")),
    (dimred.AdamW, (WEIGHTS,), {"eps": 1e-50}, "eps in float32 is 0.0; it must be a number above 0"),
    (dimred.AdamW, (WEIGHTS,), {"weight_decay": 1e50}, "weight_decay in float32 is inf; it must be"),
    (dimred.ScheduleFree, (WEIGHTS,), {"beta": 1e-50}, "beta in float32 is 0.0; it must be a number above 0"),
    (dimred.EMA, (NETWORK, 1 - 1e-8), {}, "decay in float32 is 1.0; it must be a number of at least 0 and below 1"),
    (dimred.Clipping, (1e-50,), {}, "norm in float32 is 0.0; it must be a number above 0"),
    (dimred.StaticLossScale, (1e-50,), {}, "scale in float32 is 0.0; it must be a number above 0"),
    (dimred.DynamicLossScale, (), {"factor": 1 + 1e-8}, "factor in float32 is 1.0; it must be a number above 1"),
]


@pytest.mark.parametrize(("part", "arguments", "options", "said"), REFUSED)
def test_an_argument_that_is_not_allowed_is_named(
    part: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        part(*arguments, **options)


def train_step(**parts: Any) -> nn.Cell:
    network = TanhMLP()
    return dimred.TrainStep(network, nn.SGD(network.trainable_params(), 0.1), **parts)


def search_step(**parts: Any) -> nn.Cell:
    network = TanhMLP()
    return dimred.SubspaceTrainStep(network, basis_for(network), **parts)


OTHER_PARTS: list[tuple[str, Any, str]] = [
    ("clipping", -1.0, "clipping: norm is -1.0; it must be a number above 0"),
    ("clipping", "1", "clipping is '1'; it must be a number, the largest global norm; or dimred.Clipping"),
    ("clipping", True, "clipping is True; it must be a number"),
    ("ema", 1.5, "ema: decay is 1.5; it must be a number of at least 0 and below 1"),
    ("ema", NETWORK, "ema is .*; it must be a number, the decay; or dimred.EMA of the network"),
    ("ema", dimred.EMA(NETWORK, 0.9), "ema averages 'hidden.weight', which is not of this network"),
    ("loss_scale", 0, "loss_scale: scale is 0; it must be a number above 0"),
    ("loss_scale", "dynamic", "loss_scale is 'dynamic'; it must be a number, dimred.StaticLossScale or"),
    ("loss_scale", amp.DynamicLossScaler(2.0, 1, 5), "loss_scale: factor is 1.0; it must be a number above 1"),
]


@pytest.mark.parametrize("make", [train_step, search_step])
@pytest.mark.parametrize(("name", "value", "said"), OTHER_PARTS)
def test_a_part_that_can_not_be_used_is_named_by_both_steps(
    make: Callable[..., nn.Cell], name: str, value: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make(**{name: value})


def test_mindspore_s_scalers_and_managers_become_ours_with_their_settings() -> None:
    adjusted = amp.DynamicLossScaler(2.0**10, 4, 1)
    adjusted.adjust(ms.Tensor(True))
    static = [amp.StaticLossScaler(64.0), amp.FixedLossScaleManager(64.0, False), amp.FixedLossScaleManager(64.0), 64]
    scales = [make_parts(NETWORK, given, None, None).loss_scale for given in static]
    assert [(type(one), float(one.scale), one.drops_overflow) for one in scales] == [
        (dimred.StaticLossScale, 64.0, drops) for drops in (True, False, True, True)
    ]
    for given, first, factor, window in (
        (adjusted, 2.0**12, 4.0, 1),
        (amp.DynamicLossScaleManager(2.0**30, 3, 7), 2.0**30, 3.0, 7),  # above the bound of ours
        (amp.DynamicLossScaleManager(), 2.0**24, 2.0, 2000),
    ):
        scale = make_parts(NETWORK, given, None, None).loss_scale
        assert type(scale) is dimred.DynamicLossScale
        assert (float(scale.scale.asnumpy()), scale.factor, scale.window) == (first, factor, window)


@pytest.mark.parametrize("make", [train_step, search_step])
def test_plain_numbers_train_as_the_parts_do(make: Callable[..., nn.Cell], pynative: None) -> None:
    numbers = make(clipping=0.1, ema=0.9, loss_scale=amp.FixedLossScaleManager(512))
    parts = make(clipping=dimred.Clipping(0.1), loss_scale=dimred.StaticLossScale(512.0))
    for batch in batches(3):
        for step in (numbers, parts):
            step(*tensors(batch))
    assert not changed(values(parts), values(numbers))
    assert {"ema.hidden.weight", "ema.updates"} <= values(numbers).keys()
    assert int(numbers.ema.n_updates) == 3


def image_arrays(seed: int) -> list[np.ndarray]:
    return [part.asnumpy() for part in image_batch(seed)]


def test_the_readme_s_step_with_all_parts_trains(capsys: pytest.CaptureFixture[str]) -> None:
    text = (REPOSITORY / "dimred" / "train_step" / "README.md").read_text(encoding="utf-8")
    net = nn.SequentialCell(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dense(4 * 36, 3))
    first = net[0].weight.asnumpy().copy()
    x, y = (np.concatenate(parts) for parts in zip(*(image_arrays(n) for n in range(9)), strict=True))
    data = ms.dataset.NumpySlicesDataset((x, y), shuffle=False).batch(32)  # the last batch has 8 rows
    names = {"dimred": dimred, "mindspore": ms, "nn": nn, "LossMonitor": LossMonitor, "net": net, "data": data}
    exec(text.partition("```python\n")[2].partition("```")[0], names)
    assert capsys.readouterr().out.count("loss is") == 6
    assert int(names["step"].ema.n_updates) == 6
    assert (net[0].weight.asnumpy() != first).any()
