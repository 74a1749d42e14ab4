"""Which weights decay."""

from collections.abc import Sequence
from typing import Any

from mindspore import Parameter

_SPARED = ("gamma", "beta", "bias")


def decays(parameter: Parameter) -> bool:
    """Whether weight decay applies: everywhere but on normalisation's gamma and beta, and on biases."""
    return parameter.name.rsplit(".", 1)[-1] not in _SPARED


def decay_groups(parameters: Sequence[Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for a MindSpore optimizer: with the decay, without it, and the original order."""
    decayed = [parameter for parameter in parameters if decays(parameter)]
    spared = [parameter for parameter in parameters if not decays(parameter)]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]] + [{"order_params": list(parameters)}]
