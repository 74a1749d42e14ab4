"""Initial weights for the built-in networks, by name."""

from collections.abc import Callable

import mindspore as ms
from mindspore import nn
from mindspore.common import initializer as init

_WAYS: dict[str, Callable[[], init.Initializer]] = {
    "xavier_uniform": init.XavierUniform,
    "kaiming": lambda: init.HeNormal(mode="fan_out", nonlinearity="relu"),
    # Truncated at two standard deviations; the bounds are absolute.
    "truncated_normal": lambda: init.TruncatedNormal(sigma=0.01, mean=0.0, a=-0.02, b=0.02),
}


def initialise(network: nn.Cell, convolution: str = "xavier_uniform", dense: str = "truncated_normal") -> None:
    """Draw new initial weights of convolutions and dense layers; their biases become 0.

    BatchNorm keeps gamma 1 and beta 0. ``mindspore.set_seed`` determines the draw.

    Args:
        network: changed in place.
        convolution: ``xavier_uniform`` (Glorot & Bengio 2010) or ``kaiming`` (He et al. 2015, normal, fan out).
        dense: one of these, or ``truncated_normal`` with standard deviation 0.01. The published recipe uses that for
            one dense layer at the end; several such layers in a row would begin with a gradient near 0.
    """
    for _, layer in network.cells_and_names():
        if isinstance(layer, nn.Conv2d):
            _draw(layer.weight, _WAYS[convolution]())
        elif isinstance(layer, nn.Dense):
            _draw(layer.weight, _WAYS[dense]())
        else:
            continue
        if layer.bias is not None:
            _draw(layer.bias, init.Zero())


def _draw(parameter: ms.Parameter, initializer: init.Initializer) -> None:
    parameter.set_data(init.initializer(initializer, parameter.shape, parameter.dtype))
