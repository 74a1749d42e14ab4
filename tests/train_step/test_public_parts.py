"""The parts of a step check their arguments, and both steps check their parts."""

from collections.abc import Callable
from typing import Any

import mindspore as ms
import pytest
from mindspore import amp, nn

import dimred
from dimred.errors import ConfigError
from dimred.train_step.part import WeightsPart
from tests.helpers.networks import TanhMLP, basis_for

NETWORK = TanhMLP()
WEIGHTS = NETWORK.trainable_params()
INF, NAN = float("inf"), float("nan")

REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    *((dimred.Clipping, (norm,), {}, "norm is .*; ") for norm in (-1, 0, NAN, True, "1", None)),
    *((dimred.EMA, (NETWORK, d), {}, "decay is .*; ") for d in (2.0, 1, -0.1, NAN, "0.9", None)),
    *((dimred.EMA, (NETWORK,), {"half_life": h}, "half_life is .*; ") for h in (0, 1.0, -0.1, NAN, "0.05", "0%", True)),
    (dimred.EMA, (NETWORK, 0.9), {"half_life": 0.05}, r"half_life is 0\.05, and decay is 0\.9; give one of them"),
    (dimred.EMA, (0.9,), {}, r"network is 0\.9; it must be a cell"),
    (dimred.EMA, (NETWORK, 0.9), {"ramp": 3}, "ramp is 3; it must be a valid boolean"),
    *((dimred.StaticLossScale, (s,), {}, "scale is .*; ") for s in (0, -4, INF, 2.0**126, None)),
    (dimred.StaticLossScale, (2, "no"), {}, "drop_overflow is 'no'; it must be a valid boolean"),
    (dimred.DynamicLossScale, (0,), {}, "scale is 0; it must be greater than 0"),
    (dimred.DynamicLossScale, (), {"factor": 1}, "factor is 1; it must be greater than 1"),
    (dimred.DynamicLossScale, (), {"window": 2.5}, r"window is 2\.5; it must be a valid integer"),
    (dimred.DynamicLossScale, (8,), {"largest": 4}, r"scale is 8; it must lie between smallest \(1\) and largest"),
    (dimred.with_precision, (NETWORK, "o2"), {}, "level is 'o2'; allowed: O0, O1, O2, O3"),
    (dimred.with_precision, (NETWORK,), {"dtype": "half"}, "dtype is 'half'; allowed: float16, bfloat16"),
    (dimred.with_precision, (NETWORK,), {"casts": {"out": "fp16"}}, r"casts\['out'\] is 'fp16'; allowed: float16"),
    (dimred.with_precision, (NETWORK,), {"keep_batch_norm": 1}, "keep_batch_norm is 1; it must be True, False"),
    (dimred.with_precision, ("resnet50",), {}, "network is 'resnet50'; it must be a cell"),
    *(
        (dimred.AdamW, (WEIGHTS,), {name: value}, f"{name} is {value}; ")
        for name, value in {"beta1": 1.0, "beta2": -1, "eps": 0, "weight_decay": -1e-4}.items()
    ),
    *((dimred.ScheduleFree, (WEIGHTS,), {"beta": b}, "beta is .*; ") for b in (0, 1.0, -0.9, NAN, "0.9")),
    # A graph rounds them to float32: these would train nothing, drop each step, or make every weight NaN.
    *((dimred.AdamW, (WEIGHTS,), {b: 1 - 1e-8}, f"float32, .* {b} is 1.0; ") for b in ("beta1", "beta2")),
    (dimred.AdamW, (WEIGHTS,), {"eps": 1e-50}, "float32, .* eps is 0.0; it must be greater than 0"),
    (dimred.ScheduleFree, (WEIGHTS,), {"beta": 1e-50}, "float32, .* beta is 0.0; "),
    (dimred.EMA, (NETWORK, 1 - 1e-8), {}, "float32, .* decay is 1.0; it must be less than 1"),
    (dimred.Clipping, (1e-50,), {}, "float32, .* norm is 0.0; it must be greater than 0"),
    (dimred.StaticLossScale, (1e-50,), {}, "float32, .* scale is 0.0; it must be greater than 0"),
    (dimred.DynamicLossScale, (), {"factor": 1 + 1e-8}, "float32, .* factor is 1.0; it must be greater than 1"),
]


def test_an_argument_that_is_not_allowed_is_named() -> None:
    for part, arguments, options, said in REFUSED:
        with pytest.raises(ConfigError, match=said):
            part(*arguments, **options)


def train_step(**options: Any) -> nn.Cell:
    network = TanhMLP()
    return dimred.TrainStep(network, nn.SGD(network.trainable_params(), 0.1), **options)


def search_step(**options: Any) -> nn.Cell:
    network = TanhMLP()
    return dimred.SubspaceTrainStep(network, basis_for(network), **options)


class Misnamed(WeightsPart):
    name = "own"

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.count = ms.Parameter(ms.Tensor(0, ms.int32), name="count")


OTHER_PARTS: list[tuple[Any, str]] = [
    (1.0, r"parts is 1\.0; it must be a list of parts"),
    ([1.0], r"parts has 1\.0; each must be dimred\.Clipping"),
    ([dimred.Clipping(1.0), dimred.Clipping(2.0)], "parts has two named 'clipping'; give one"),
    ([Misnamed()], "the part 'own' has a parameter named 'count'.*begin it with 'own.'"),
    ([dimred.EMA(NETWORK, 0.9)], "ema follows 'hidden.weight', which is not in this network"),
]


@pytest.mark.parametrize("make", [train_step, search_step])
def test_parts_that_can_not_be_used_are_named_by_both_steps(make: Callable[..., nn.Cell]) -> None:
    for parts, said in OTHER_PARTS:
        with pytest.raises(ConfigError, match=said):
            make(parts=parts)


@pytest.mark.parametrize("make", [train_step, search_step])
def test_a_number_or_mindspores_loss_scale_stands_for_a_part(make: Callable[..., nn.Cell]) -> None:
    clipping, ema, scale = (part for name in ("clipping", "ema", "loss_scale") for part in make(**{name: 0.5}).parts)
    assert (clipping.norm, ema.fraction.decay, float(scale.scale)) == (0.5, 0.5, 0.5)
    [static] = make(loss_scale=amp.StaticLossScaler(64)).parts
    [dynamic] = make(loss_scale=amp.DynamicLossScaler(32, 4, 5)).parts
    assert (type(static), float(static.scale)) == (dimred.StaticLossScale, 64)
    assert (float(dynamic.scale.asnumpy()), dynamic.factor, dynamic.window) == (32, 4, 5)
    for drops in (True, False):
        [static] = make(loss_scale=amp.FixedLossScaleManager(256, drop_overflow_update=drops)).parts
        assert (float(static.scale), static.drops_overflow) == (256, drops)
    manager = amp.DynamicLossScaleManager(64, scale_factor=4, scale_window=5)
    manager.update_loss_scale(True)
    [dynamic] = make(loss_scale=manager).parts
    assert (float(dynamic.scale.asnumpy()), dynamic.factor, dynamic.window) == (16, 4, 5)
    for options, said in (
        ({"clipping": 0}, "clipping: norm is 0; "),
        ({"ema": 1}, "ema: decay is 1; "),
        ({"loss_scale": 2.0**127}, "loss_scale: scale is .*; "),
        ({"loss_scale": "1024"}, "loss_scale is '1024'; give a number, a scaler or a loss-scale manager of mind"),
        ({"clipping": dimred.EMA(NETWORK)}, "clipping is .*; give a number, or dimred's part of that name"),
        ({"ema": True}, "ema is True; give a number"),
        ({"clipping": 1, "parts": [dimred.Clipping(1)]}, "parts has two named 'clipping'"),
    ):
        with pytest.raises(ConfigError, match=said):
            make(**options)
