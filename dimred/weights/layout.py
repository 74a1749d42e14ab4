"""In which order, and with which shapes, the weights of a network stand in one long vector.

And which entries of a checkpoint are such weights, where no network and no manifest says so.
"""

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from dimred.errors import BasisMismatchError, CheckpointError
from dimred.weights.stored_tensor import StoredTensor


def as_array(value: Any) -> np.ndarray:
    """A NumPy view of an array, a MindSpore tensor, or a MindSpore parameter."""
    return value.asnumpy() if hasattr(value, "asnumpy") else np.asarray(value)


@dataclass(frozen=True)
class WeightLayout:
    """The trainable parameters of a network, in order: how M weights map to one vector and back.

    Parameter number i, of shape ``shapes[i]``, has the entries ``offsets[i] : offsets[i] + sizes[i]``, in C order.

    Args:
        names: the parameters' names, in the order of ``network.trainable_params()``.
        shapes: their shapes, one per name.

    Raises:
        BasisMismatchError: no names, a name twice, or not one shape for each name.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.names:
            raise BasisMismatchError("The layout has no parameters: nothing in the network is trainable.")
        if len(self.names) != len(self.shapes):
            raise BasisMismatchError(
                f"The layout has {len(self.names)} names and {len(self.shapes)} shapes; it needs one shape for each."
            )
        name, count = Counter(self.names).most_common(1)[0]
        if count > 1:
            raise BasisMismatchError(f"The layout names the parameter {name!r} twice; names must be unique.")

    @classmethod
    def from_network(cls, network: Any) -> "WeightLayout":
        """The layout of the trainable parameters of a MindSpore cell, in the network's order."""
        parameters = network.trainable_params()
        return cls(tuple(p.name for p in parameters), tuple(_plain(p.shape) for p in parameters))

    @classmethod
    def from_weights(cls, weights: Mapping[str, Any]) -> "WeightLayout":
        """The layout of ``weights`` (name -> array), in the mapping's order."""
        return cls(tuple(weights), tuple(_plain(value.shape) for value in weights.values()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        return tuple(accumulate(self.sizes[:-1], initial=0))

    @cached_property
    def size(self) -> int:
        """M, the length of the vector."""
        return sum(self.sizes)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over names, order and shapes, as 64 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.to_json(), separators=(",", ":")).encode()).hexdigest()

    def flatten(self, weights: Mapping[str, Any]) -> np.ndarray:
        """The weights (name -> array, tensor or parameter) one after the other, float32 (M,); other names are ignored.

        Raises:
            CheckpointError: a parameter is missing or has another shape.
        """
        arrays = {name: as_array(weights[name]) for name in self.names if name in weights}
        misfit = self.misfit({name: array.shape for name, array in arrays.items()})
        if misfit:
            raise CheckpointError(f"The weights are not those of the layout: {misfit}.")
        return np.concatenate([arrays[name].ravel() for name in self.names], dtype=np.float32, casting="unsafe")

    def unflatten(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The parameters in ``vector`` (M,), as views: name -> array of the parameter's shape."""
        if vector.shape != (self.size,):
            raise BasisMismatchError(f"The vector has shape {vector.shape}; this layout needs ({self.size},).")
        return {
            name: vector[offset : offset + size].reshape(shape)
            for name, shape, offset, size in zip(self.names, self.shapes, self.offsets, self.sizes, strict=True)
        }

    def to_json(self) -> dict[str, Any]:
        """The layout as plain lists, ready for ``json.dump``: {"names": [...], "shapes": [[...], ...]}."""
        return {"names": list(self.names), "shapes": [list(shape) for shape in self.shapes]}

    @classmethod
    def from_json(cls, data: Any) -> "WeightLayout":
        """The layout that ``to_json`` wrote; BasisMismatchError for anything else."""
        names, shapes = (data.get("names"), data.get("shapes")) if isinstance(data, dict) else (None, None)
        if not (
            isinstance(names, list)
            and isinstance(shapes, list)
            and all(isinstance(name, str) for name in names)
            and all(isinstance(s, list) and len(s) <= 32 and all(_is_length(n) for n in s) for s in shapes)
        ):
            raise BasisMismatchError(
                'A stored layout must be {"names": [texts], "shapes": [lists of whole numbers >= 0]}.'
            )
        return cls(tuple(names), tuple(tuple(shape) for shape in shapes))

    def misfit(self, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """Why a checkpoint with parameters of these ``shapes`` does not hold these weights; None if it does."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in shapes:
                return f"it has no parameter {name!r} {shape}"
            if shapes[name] != shape:
                return f"its parameter {name!r} has shape {shapes[name]} instead of {shape}"
        return None

    def first_difference(self, other: "WeightLayout") -> str | None:
        """The first way in which ``other`` differs from this layout, in words; None when they are equal."""
        if self == other:
            return None
        pairs = zip(self.names, self.shapes, other.names, other.shapes, strict=False)
        for number, (name, shape, other_name, other_shape) in enumerate(pairs):
            if name != other_name:
                moved = " (the same parameter stands elsewhere: the order differs)" if name in other.names else ""
                return f"parameter {number} is {name!r} {shape} here and {other_name!r} {other_shape} there{moved}"
            if shape != other_shape:
                return f"parameter {number}, {name!r}, has shape {shape} here and {other_shape} there"
        longer, where = (self, "here") if len(self.names) > len(other.names) else (other, "there")
        common = min(len(self.names), len(other.names))
        return (
            f"{len(self.names)} parameters here and {len(other.names)} there; {longer.names[common]!r} "
            f"{longer.shapes[common]} is only {where}"
        )


def _plain(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(length) for length in shape)


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


# The running statistics of a normalisation as PyTorch names them, with their count, and as MindSpore and Keras do.
_STATISTICS = frozenset({"running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance"})
# What MindSpore's optimizers put before a parameter's name to name its state, and dimred before its averages.
_STATE = frozenset((
    "accum", "accumulation", "ema", "exp_avg", "exp_avg_sq", "linear", "m", "max_exp_avg_sq", "mean_grad",
    "mean_gradient", "mean_square", "moment", "moment1", "moment2", "moments", "momentum", "prev", "stat", "v", "vhat",
))  # fmt: skip
_COUNTERS = frozenset((
    "beta1_power", "beta2_power", "current_iterator_step", "epoch", "epoch_num", "global_step",
    "last_overflow_iterator_step", "learning_rate", "loss_scale", "momentum", "scale_sense", "step", "step_num",
    "weight_decay",
))  # fmt: skip


def is_statistic(name: str) -> bool:
    """Whether an entry is a statistic of the data that passed through a normalisation, or their count: not trained."""
    return name.rpartition(".")[2] in _STATISTICS


def trainable_layout(
    index: Mapping[str, StoredTensor], path: str | os.PathLike[str]
) -> tuple[WeightLayout, tuple[str, ...]]:
    """The layout of what is taken for trainable weights in a checkpoint at ``path``, and the names left out.

    Left out are numbers that aren't floats, statistics, an optimizer's counters, and its state: a name such as
    ``moments.conv.weight`` where ``conv.weight`` has the same shape.

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
    return tensor.is_float and not (is_state or is_statistic(name) or name in _COUNTERS)
