"""What a network's first layer takes, for an error about inputs that do not fit."""

from collections.abc import Callable
from typing import Any

from mindspore import nn

# kind of layer -> function that says in words what such a layer takes
_TAKEN: dict[type[nn.Cell], Callable[[Any], str]] = {
    nn.Conv1d: lambda layer: f"floats (n, {layer.in_channels}, length)",
    nn.Conv2d: lambda layer: f"floats (n, {layer.in_channels}, height, width)",
    nn.Conv3d: lambda layer: f"floats (n, {layer.in_channels}, depth, height, width)",
    nn.Dense: lambda layer: f"floats (n, ..., {layer.in_channels})",
    nn.Embedding: lambda layer: f"whole numbers (n, ...) from 0 to {layer.vocab_size - 1}",
}


def describe_first_layer(network: nn.Cell) -> str:
    """Return a clause such as ``first layer, 0 (Conv2d), takes floats (n, 3, height, width)``.

    It is empty if no layer is of a known kind.
    """
    for name, layer in network.cells_and_names():
        for kind, taken in _TAKEN.items():
            if isinstance(layer, kind):
                return f"first layer, {name or 'itself'} ({kind.__name__}), takes {taken(layer)}"
    return ""
