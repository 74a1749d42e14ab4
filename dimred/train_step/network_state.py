"""A network's state besides its weights, as a saved copy."""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.vectors.host_memory import in_place, on_host

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
