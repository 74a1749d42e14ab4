"""Which weights decay."""

from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

from mindspore import Parameter

NO_DECAY_PATTERNS = ("*gamma", "*beta", "*bias")
"""Patterns of the names that don't decay: normalisation's gamma and beta, and biases."""


def decays(parameter: Parameter, no_decay: Sequence[str] = NO_DECAY_PATTERNS) -> bool:
    """Whether weight decay applies: to every parameter whose name fits none of the patterns."""
    return not any(fnmatch(parameter.name, pattern) for pattern in no_decay)


def decay_groups(
    parameters: Sequence[Parameter], weight_decay: float, no_decay: Sequence[str] = NO_DECAY_PATTERNS
) -> list[dict[str, Any]]:
    """Parameter groups for a MindSpore optimizer: with the decay, without it, and the original order."""
    decayed = [parameter for parameter in parameters if decays(parameter, no_decay)]
    spared = [parameter for parameter in parameters if not decays(parameter, no_decay)]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]] + [{"order_params": list(parameters)}]
