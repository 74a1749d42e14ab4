"""A network's state besides its weights, as a saved copy."""

from collections.abc import Sequence
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from dimred.train_step.host_memory import HostMemory, on_host

_ALIGNMENT = 64  # of each parameter, so that types of different length can stand side by side


class Saved(NamedTuple):
    """What ``SideState.save`` keeps.

    Attributes:
        on_host: the parameters in host memory, as bytes.
        elsewhere: a tensor for each other parameter.
    """

    on_host: np.ndarray
    elsewhere: Sequence[Tensor]


class SideState:
    """What a forward pass may change besides the weights: BatchNorm statistics, counters, any untrained parameter.

    A trial, or an update that is dropped, must leave no trace in it, whatever the network keeps there; so copies are
    kept and put back, byte for byte.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        held = [parameter for parameter in parameters if on_host() and HostMemory.holds(parameter)]
        mine = {id(parameter) for parameter in held}
        self._memory = HostMemory(held, _ALIGNMENT)
        self._elsewhere = [parameter for parameter in parameters if id(parameter) not in mine]
        self._copy = CopyOf(self._elsewhere) if self._elsewhere else None

    def save(self) -> Saved:
        """Copies of all of it."""
        elsewhere = [Tensor(value) for value in self._copy()] if self._copy else []
        return Saved(self._memory.settled().copy(), elsewhere)

    def restore(self, saved: Saved) -> None:
        """Put saved copies back."""
        np.copyto(self._memory.settled(), saved.on_host)
        for parameter, value in zip(self._elsewhere, saved.elsewhere, strict=True):
            ops.assign(parameter, value)


class CopyOf(nn.Cell):
    """Copies of parameters, as a tuple."""

    def __init__(self, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.state = ms.ParameterTuple(parameters)

    def construct(self) -> tuple[Tensor, ...]:
        return tuple([value.copy() for value in self.state])
