"""Initial weights by name."""

from collections.abc import Callable

import mindspore as ms
from mindspore import nn
from mindspore.common import initializer as init

from dimred.errors import ConfigError

_CONVOLUTION: dict[str, Callable[[], init.Initializer]] = {
    "xavier_uniform": init.XavierUniform,
    "xavier_normal": init.XavierNormal,
    "kaiming": lambda: init.HeNormal(mode="fan_out", nonlinearity="relu"),
    "truncated_normal": lambda: _truncated_normal(0.02),
}


def initialise(network: nn.Cell, convolution: str = "xavier_uniform") -> None:
    """Draw new initial weights: convolutions by name, dense layers from a truncated normal, biases zero.

    BatchNorm keeps gamma 1 and beta 0. The draw follows ``mindspore.set_seed``.

    Args:
        network: changed in place.
        convolution: ``xavier_uniform``, ``xavier_normal`` (Glorot & Bengio 2010), ``kaiming`` (He et al. 2015, fan out)
            or ``truncated_normal``.

    Raises:
        ConfigError: an unknown name.
    """
    if convolution not in _CONVOLUTION:
        raise ConfigError(f"initialisation is {convolution!r}; allowed: {', '.join(_CONVOLUTION)}")
    for cell in network.cells_and_names():
        _, layer = cell
        if isinstance(layer, nn.Conv2d):
            _draw(layer.weight, _CONVOLUTION[convolution]())
        elif isinstance(layer, nn.Dense):
            _draw(layer.weight, _truncated_normal(0.01))
            if layer.bias is not None:
                _draw(layer.bias, init.Zero())


def _draw(parameter: ms.Parameter, initializer: init.Initializer) -> None:
    parameter.set_data(init.initializer(initializer, parameter.shape, parameter.dtype))


def _truncated_normal(sigma: float) -> init.Initializer:
    """Normal, drawn again beyond two standard deviations; MindSpore's own bounds are absolute numbers."""
    return init.TruncatedNormal(sigma=sigma, mean=0.0, a=-2 * sigma, b=2 * sigma)
