"""A network's state besides its weights, as a saved copy."""

from collections.abc import Sequence
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.train_step.host_memory import has_numpy_type, in_place, on_host


class Saved(NamedTuple):
    """What ``SideState.save`` keeps.

    Attributes:
        on_host: copies of the parameters that NumPy can write to.
        elsewhere: of the others.
    """

    on_host: Sequence[np.ndarray]
    elsewhere: Sequence[Tensor]


class SideState:
    """What a forward pass may change besides the weights: BatchNorm statistics, counters, any untrained parameter.

    A trial, or an update that is dropped, must leave no trace in it, whatever the network keeps there; so copies are
    kept and put back, byte for byte.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        on_cpu = on_host()
        self._on_host = [parameter for parameter in parameters if on_cpu and has_numpy_type(parameter)]
        self._elsewhere = [parameter for parameter in parameters if not (on_cpu and has_numpy_type(parameter))]
        self._copy = CopyOf(self._elsewhere) if self._elsewhere else None

    def save(self) -> Saved:
        """Copies of all of it."""
        elsewhere = [Tensor(value) for value in self._copy()] if self._copy else []
        return Saved([in_place(parameter).copy() for parameter in self._on_host], elsewhere)

    def restore(self, saved: Saved) -> None:
        """Put saved copies back."""
        for parameter, values in zip(self._on_host, saved.on_host, strict=True):
            in_place(parameter)[...] = values
        for parameter, value in zip(self._elsewhere, saved.elsewhere, strict=True):
            ops.assign(parameter, value)


class CopyOf(nn.Cell):
    """Copies of parameters, as a tuple."""

    def __init__(self, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.state = ms.ParameterTuple(parameters)

    def construct(self) -> tuple[Tensor, ...]:
        return tuple([value.copy() for value in self.state])
