"""The trainable weights as one vector."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from dimred.train_step.host_memory import HostMemory, empty_vector, on_host
from dimred.train_step.pieces import in_pieces


def gather(parameters: Sequence[Tensor]) -> Tensor:
    """The tensors as one float32 vector (M,), in their order."""
    return ops.concat([parameter.reshape((-1,)).astype(ms.float32) for parameter in parameters])


def along(start: Tensor, direction: Tensor, step_size: float) -> Tensor:
    """w + t d, (M,) float32."""
    return mint.add(start, direction, alpha=step_size)  # one kernel; w + t * d as written would be two


class Weights(Protocol):
    """Parameters as one vector (M,) float32, in their order."""

    def read(self) -> Tensor:
        """A copy of the weights."""

    def write(self, vector: Tensor) -> None:
        """Put the vector into the weights, bit for bit where they are float32."""

    def put(self, start: Tensor, direction: Tensor, step_size: float) -> None:
        """weights <- start + step_size * direction."""

    def add(self, vector: Tensor, factor: float) -> None:
        """weights <- weights + factor * vector."""


def make_weights(parameters: Sequence[Parameter]) -> Weights:
    """The parameters as a vector: in one piece of host memory, or wherever they are, by graphs."""
    if on_host() and all(parameter.dtype == ms.float32 for parameter in parameters):
        return HostWeights(parameters)
    return GraphWeights(parameters)


class HostWeights:
    """Weights that lie in one piece of memory.

    ResNet-18's 11.2 M, on 2 cores: ``put`` takes 7 ms where the graph's assignments to 62 parameters took 21.

    Args:
        parameters: float32, on the CPU.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        self._memory = HostMemory(parameters)

    def read(self) -> Tensor:
        """See ``Weights``."""
        weights = self._vector()
        copy = empty_vector(len(weights))
        np.copyto(copy, weights)
        return Tensor.from_numpy(copy)

    def write(self, vector: Tensor) -> None:
        """See ``Weights``."""
        np.copyto(self._vector(), vector.asnumpy())

    def put(self, start: Tensor, direction: Tensor, step_size: float) -> None:
        """See ``Weights``."""
        _sum_into(self._vector(), start.asnumpy(), direction.asnumpy(), step_size)

    def add(self, vector: Tensor, factor: float) -> None:
        """See ``Weights``."""
        weights = self._vector()
        _sum_into(weights, weights, vector.asnumpy(), factor)

    def _vector(self) -> np.ndarray:
        return self._memory.settled().view(np.float32)


def _sum_into(out: np.ndarray, start: np.ndarray, direction: np.ndarray, step_size: float) -> None:
    def piece(first: int, end: int) -> None:
        np.add(start[first:end], direction[first:end] * np.float32(step_size), out=out[first:end])

    in_pieces(len(out), piece)


class GraphWeights:
    """Weights of any type, anywhere, read and written by graphs.

    Args:
        parameters: in the order of the vector.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        self._read = _Read(parameters)
        self._write = _Write(parameters)

    def read(self) -> Tensor:
        """See ``Weights``."""
        return self._read()

    def write(self, vector: Tensor) -> None:
        """See ``Weights``."""
        self._write(vector)

    def put(self, start: Tensor, direction: Tensor, step_size: float) -> None:
        """See ``Weights``."""
        self._write(along(start, direction, step_size))

    def add(self, vector: Tensor, factor: float) -> None:
        """See ``Weights``."""
        self._write(along(self._read(), vector, factor))


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
        self.offsets = tuple(accumulate((parameter.size for parameter in parameters), initial=0))

    def construct(self, vector: Tensor) -> bool:
        for index, weight in enumerate(self.weights):
            piece = vector[self.offsets[index] : self.offsets[index + 1]]
            ops.assign(weight, piece.reshape(weight.shape).astype(weight.dtype))
        return True
