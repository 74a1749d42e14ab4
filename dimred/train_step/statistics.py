"""Find a network's BatchNorms and their moving statistics."""

from mindspore import Parameter, mint, nn

from dimred.errors import ConfigError

# Cells with statistics. ``nn.BatchNorm3d`` is not here: the ``nn.BatchNorm2d`` that it holds has them.
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
# For Ascend only. Their statistics have different names, and their momentum is defined differently.
_OTHERS = (mint.nn.BatchNorm1d, mint.nn.BatchNorm2d, mint.nn.BatchNorm3d, mint.nn.SyncBatchNorm)


def batch_norms(network: nn.Cell) -> list[nn.Cell]:
    """List every BatchNorm in the network; raise ConfigError for a ``mindspore.mint`` one."""
    layers = []
    for name, layer in network.cells_and_names():
        if isinstance(layer, _OTHERS):
            kind = type(layer).__name__
            raise ConfigError(
                f"the network's cell {name!r} is a mint.nn.{kind}, whose statistics dimred does not know; use nn.{kind}"
            )
        if isinstance(layer, BATCH_NORMS):
            layers.append(layer)
    return layers


def moving_statistics(network: nn.Cell) -> list[Parameter]:
    """List every BatchNorm's moving mean and variance; raises as ``batch_norms`` does."""
    return [value for layer in batch_norms(network) for value in (layer.moving_mean, layer.moving_variance)]
