"""Which parameters of a checkpoint are a network's trainable weights, when nothing else tells."""

import os
from collections.abc import Mapping

from dimred.errors import CheckpointError
from dimred.weights.layout import WeightLayout
from dimred.weights.stored_tensor import StoredTensor

__all__ = ["trainable_names"]

_STATISTICS = ("moving_mean", "moving_variance")
# What MindSpore's optimizers put before a parameter's name to name its state, and dimred before its averages.
_STATE = frozenset(
    {"accum", "accumulation", "ema", "exp_avg", "exp_avg_sq", "linear", "m", "max_exp_avg_sq", "mean_grad"}
    | {
        "mean_gradient",
        "mean_square",
        "moment",
        "moment1",
        "moment2",
        "moments",
        "momentum",
        "prev",
        "stat",
        "v",
        "vhat",
    }
)
_COUNTERS = frozenset(
    {"beta1_power", "beta2_power", "current_iterator_step", "epoch", "epoch_num", "global_step", "learning_rate"}
    | {"last_overflow_iterator_step", "loss_scale", "momentum", "scale_sense", "step", "step_num", "weight_decay"}
)


def trainable_names(
    index: Mapping[str, StoredTensor], path: str | os.PathLike[str]
) -> tuple[WeightLayout, tuple[str, ...]]:
    """The layout of what is taken for trainable weights in a checkpoint, and the names left out.

    Left out are numbers that aren't floats, BatchNorm's moving statistics, an optimizer's counters, and its state: a
    name such as ``moments.conv.weight`` where ``conv.weight`` has the same shape.

    Raises:
        CheckpointError: nothing is left.
    """
    kept = {name: tensor.shape for name, tensor in index.items() if _is_weight(name, tensor, index)}
    if not kept:
        raise CheckpointError(
            f"{path} has no trainable weights: its {len(index)} entries are counters, statistics or state."
        )
    ignored = tuple(name for name in index if name not in kept)
    return WeightLayout(tuple(kept), tuple(kept.values())), ignored


def _is_weight(name: str, tensor: StoredTensor, index: Mapping[str, StoredTensor]) -> bool:
    head, _, rest = name.partition(".")
    is_state = head in _STATE and rest in index and index[rest].shape == tensor.shape
    is_statistic = name.rpartition(".")[2] in _STATISTICS
    return tensor.is_float and not (is_state or is_statistic or name in _COUNTERS)
