"""A network's state: the trainable weights as one vector, everything else as a saved copy."""

from collections.abc import Sequence

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops


def gather(parameters: Sequence[Parameter]) -> Tensor:
    """The parameters as one float32 vector (M,), in their order."""
    return ops.concat([parameter.reshape((-1,)).astype(ms.float32) for parameter in parameters])


def along(start: Tensor, direction: Tensor, step_size: float) -> Tensor:
    """w + t d, (M,) float32."""
    return mint.add(start, direction, alpha=step_size)  # one kernel; w + t * d as written would be two


class Weights:
    """The trainable weights as one vector (M,) float32.

    Args:
        parameters: in the order of the vector.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        self._read = _Read(parameters)
        self._write = _Write(parameters)

    def read(self) -> Tensor:
        """A copy of the weights."""
        return self._read()

    def write(self, vector: Tensor) -> None:
        """Put the vector into the weights, bit for bit where they are float32."""
        self._write(vector)


class SideState:
    """What a forward pass may change besides the weights: BatchNorm statistics, counters, any untrained parameter.

    A trial, or an update that is dropped, must leave no trace in it, whatever the network keeps there; so copies are
    kept and put back, byte for byte.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        self._parameters = list(parameters)
        self._copy = CopyOf(self._parameters) if self._parameters else None

    def save(self) -> list[Tensor]:
        """Copies of all of it."""
        return [Tensor(value) for value in self._copy()] if self._copy else []

    def restore(self, saved: Sequence[Tensor]) -> None:
        """Put saved copies back."""
        for parameter, value in zip(self._parameters, saved, strict=True):
            ops.assign(parameter, value)


class _Read(nn.Cell):
    def __init__(self, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.weights = ms.ParameterTuple(parameters)

    def construct(self) -> Tensor:
        return gather(self.weights)


class _Write(nn.Cell):
    def __init__(self, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.weights = ms.ParameterTuple(parameters)
        offsets = [0]
        for parameter in parameters:
            offsets.append(offsets[-1] + parameter.size)
        self.offsets = tuple(offsets)

    def construct(self, vector: Tensor) -> bool:
        for index, weight in enumerate(self.weights):
            piece = vector[self.offsets[index] : self.offsets[index + 1]]
            ops.assign(weight, piece.reshape(weight.shape).astype(weight.dtype))
        return True


class CopyOf(nn.Cell):
    """Copies of parameters, as a tuple."""

    def __init__(self, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.state = ms.ParameterTuple(parameters)

    def construct(self) -> tuple[Tensor, ...]:
        return tuple([value.copy() for value in self.state])
