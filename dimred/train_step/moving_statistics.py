"""BatchNorm's moving statistics: the parameters, and one update of them for a whole group of micro-batches."""

from mindspore import Parameter, Tensor, nn

from dimred.vectors.weight_vector import along, make_weights

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def moving_statistics(network: nn.Cell) -> list[Parameter]:
    """Moving mean and variance of every BatchNorm in the network."""
    layers = [layer for _, layer in network.cells_and_names() if isinstance(layer, BATCH_NORMS)]
    return [value for layer in layers for value in (layer.moving_mean, layer.moving_variance)]


class GroupStatistics:
    """Moves the statistics once for a group, by the mean of what its micro-batches would move them.

    Each micro-batch starts from the statistics before the group, r, and its forward pass leaves r + c (b_i - r) with
    its own mean or variance b_i; the group leaves their mean r + c (mean(b_i) - r). Without this, n micro-batches would
    move the statistics n times in one step.

    Args:
        network: its BatchNorms; without any, nothing is done.
    """

    def __init__(self, network: nn.Cell):
        moving = moving_statistics(network)
        self._values = make_weights(moving) if moving else None
        self._start: Tensor | None = None
        self._mean: Tensor | None = None

    def begin(self) -> None:
        """Note the statistics before the group."""
        if self._values:
            self._start, self._mean = self._values.read(), None

    def take(self, share: float) -> None:
        """After a micro-batch's forward pass: add what it left to the mean, and go back to the start."""
        if self._values:
            left = self._values.read()
            self._mean = left * share if self._mean is None else along(self._mean, left, share)
            self._values.write(self._start)

    def end(self) -> None:
        """Leave the mean."""
        if self._values:
            self._values.write(self._mean)
            self._start = self._mean = None
