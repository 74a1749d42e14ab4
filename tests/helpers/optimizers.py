"""Every optimizer that MindSpore and mindcv export, and how to make one of each."""

import inspect
from collections.abc import Sequence
from typing import Any

from mindcv.optim import adamw, adan, lion, nadam
from mindspore import nn
from mindspore.experimental import optim as experimental

from dimred.train_step.schedule_free import ScheduleFree

PACKAGES = (nn, adamw, adan, lion, nadam, experimental)
WRAPPERS = {nn.LARS, nn.OptTFTWrapper}  # of another optimizer
OPTIMIZERS = sorted(
    {
        one
        for package in PACKAGES
        for one in vars(package).values()
        if inspect.isclass(one) and issubclass(one, (nn.Optimizer, experimental.Optimizer))
    }
    - {nn.Optimizer, experimental.Optimizer, *WRAPPERS}
    | {ScheduleFree},
    key=lambda one: f"{one.__module__}.{one.__name__}",
)


def optimizer_of(kind: type, parameters: Sequence[Any], rate: Any = 0.1) -> Any:
    """Make an optimizer of a kind over parameters or groups, with one rate or a list of them."""
    options = {"momentum": 0.9} if kind is nn.Momentum else {}
    if kind is nn.AdaFactor:
        return kind(parameters, learning_rate=None, **options)
    return kind(parameters, **{"lr" if issubclass(kind, experimental.Optimizer) else "learning_rate": rate}, **options)
