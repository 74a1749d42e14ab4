"""BatchNorm's moving statistics: the parameters, and one update of them for a whole group of micro-batches."""

from mindspore import Parameter, Tensor, mint, nn

from dimred.errors import ConfigError
from dimred.vectors.base import make_vectors

# Those that have statistics. ``nn.BatchNorm3d`` has none of its own: it holds an ``nn.BatchNorm2d``.
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
# Of Ascend alone, with statistics of other names and another momentum.
_OTHERS = (mint.nn.BatchNorm1d, mint.nn.BatchNorm2d, mint.nn.BatchNorm3d, mint.nn.SyncBatchNorm)


def batch_norms(network: nn.Cell) -> list[nn.Cell]:
    """Every BatchNorm in the network; ConfigError for one of ``mint``."""
    found = []
    for name, layer in network.cells_and_names():
        if isinstance(layer, _OTHERS):
            kind = type(layer).__name__
            raise ConfigError(
                f"{name!r} of the network is a mint.nn.{kind}, whose statistics dimred does not know; use nn.{kind}"
            )
        if isinstance(layer, BATCH_NORMS):
            found.append(layer)
    return found


def moving_statistics(network: nn.Cell) -> list[Parameter]:
    """Moving mean and variance of every BatchNorm in the network."""
    return [value for layer in batch_norms(network) for value in (layer.moving_mean, layer.moving_variance)]


class GroupStatistics:
    """Moves the statistics once for a group, by the mean of what its micro-batches would move them.

    Each micro-batch starts from the statistics before the group, r, and its forward pass leaves r + c (b_i - r), where
    b_i is its own mean or variance; the group leaves their mean r + c (mean(b_i) - r). Without this, n micro-batches
    would move the statistics n times in one step.

    Args:
        network: its BatchNorms; without any, nothing is done.
    """

    def __init__(self, network: nn.Cell):
        moving = moving_statistics(network)
        self._values = make_vectors(moving) if moving else None
        self._start: Tensor | None = None
        self._mean: Tensor | None = None

    def begin(self) -> None:
        """Remember the statistics before the group."""
        if self._values is not None:
            self._start, self._mean = self._values.read(), None

    def take(self, share: float) -> None:
        """After a micro-batch's forward pass: add what it left to the mean, and go back to the start."""
        if self._values is not None:
            left = self._values.read()
            self._mean = left * share if self._mean is None else mint.add(self._mean, left, alpha=share)
            self._values.put((1.0, self._start))

    def end(self) -> None:
        """Leave the mean."""
        if self._values is not None:
            self._values.put((1.0, self._mean))
            self._start = self._mean = None
