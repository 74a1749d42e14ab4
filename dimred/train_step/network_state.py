"""A network's state besides its weights."""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.vectors.host_memory import in_place, on_host
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


Saved = Sequence[np.ndarray] | Sequence[Tensor]  # what ``SideState.save`` keeps: a copy of each parameter


class SideState:
    """What a forward pass may change besides the weights: BatchNorm statistics, counters, any untrained parameter.

    A trial, or an update that is dropped, must leave no trace in it, whatever the network keeps there; so copies are
    kept and put back, byte for byte.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        self._parameters = list(parameters)
        self._is_on_host = on_host()
        self._copy = None if self._is_on_host or not parameters else CopyOf(parameters)

    def save(self) -> Saved:
        """Copies of all of it."""
        if self._is_on_host:
            return [in_place(parameter).copy() for parameter in self._parameters]
        return [Tensor(value) for value in self._copy()] if self._copy else []

    def restore(self, saved: Saved) -> None:
        """Put saved copies back."""
        for parameter, value in zip(self._parameters, saved, strict=True):
            if self._is_on_host:
                in_place(parameter)[...] = value
            else:
                ops.assign(parameter, value)


class CopyOf(nn.Cell):
    """Copies of parameters, as a tuple."""

    def __init__(self, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.state = ms.ParameterTuple(parameters)

    def construct(self) -> tuple[Tensor, ...]:
        return tuple([value.copy() for value in self.state])
