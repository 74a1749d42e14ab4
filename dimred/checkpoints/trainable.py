"""Decide which entries of a checkpoint are weights if neither a manifest, nor the network, nor the user says so.

All floats are weights then, except the running statistics of normalisations. A file that also holds an optimizer's
state is refused, because each optimizer names its state in its own way.
"""

import os
import re
from collections.abc import Mapping

import numpy as np

from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.stored_tensor import StoredTensor
from dimred.errors import CheckpointError, shown

# Names of a normalisation's running statistics in PyTorch (with their count), in MindSpore and Keras, and in Paddle.
# Flax calls them mean and var: Linen keeps them below batch_stats, NNX beside each other in the layer.
_STATISTICS = re.compile(
    r"(?:.*_)?(?:running_mean|running_var|num_batches_tracked|moving_mean|moving_variance)|_mean|_variance"
)
_LAST = re.compile(r"(?P<above>(?:.*?[./])??)(?P<last>[^./:]+)(?P<ending>(?:[./](?:raw_)?value)?(?::\d+)?)")
_PARTNERS = {"mean": "var", "var": "mean"}
# Each of MindSpore's optimizers counts its steps in one of these.
_STEPS = frozenset({"global_step", "state_step", "step_t"})

Index = Mapping[str, StoredTensor]


def is_statistic(name: str, index: Index) -> bool:
    """Return whether an entry is a running statistic of a normalisation.

    Args:
        name: the entry's name, which may end in ``:0``, as Keras's variables do, or in ``.value``, as Flax NNX's do.
        index: all entries, to recognise a ``mean`` and a ``var`` of one shape in one layer.
    """
    match = _LAST.fullmatch(name)
    if not match:
        return False
    above, last, ending = match.groups()
    if last not in _PARTNERS:
        return _STATISTICS.fullmatch(last) is not None
    if "batch_stats" in re.split("[./]", above):
        return True
    partner = f"{above}{_PARTNERS[last]}{ending}"
    return partner in index and index[partner].shape == index[name].shape != ()


def trainable_layout(index: Index, path: str | os.PathLike[str]) -> WeightLayout:
    """Return the layout of a checkpoint's weights: every float that is not a running statistic, in the file's order.

    Args:
        index: name -> place of each tensor.
        path: the checkpoint's path, for the error.

    Raises:
        CheckpointError: the file has an optimizer's counter of steps, and so its state; a weight has no numbers; or
            there are no weights.
    """
    say_it = (
        "give checkpoints of the network alone, or say which entries are weights: --names-from with a checkpoint of "
        "the network alone, a manifest.json or a pca_mat.npy, or in Python layout or network"
    )
    for name, tensor in index.items():
        if name.rpartition(".")[2] in _STEPS and tensor.dtype == np.int32:
            raise CheckpointError(f"{path} holds an optimizer's state, as its entry {shown(name)} shows; {say_it}.")
    weights = {name: tensor for name, tensor in index.items() if tensor.is_float and not is_statistic(name, index)}
    if not weights:
        raise CheckpointError(f"{path} has no trainable weights: its {len(index)} entries are counters or statistics.")
    for name, tensor in weights.items():
        if 0 in tensor.shape:
            raise CheckpointError(
                f"{path}: {shown(name)} has the shape {tensor.shape}, so it is empty. DeepSpeed's ZeRO-3 leaves such "
                f"placeholders; gather the weights first with its zero_to_fp32.py. If it is not a weight, {say_it}."
            )
    return WeightLayout.from_weights(weights)
