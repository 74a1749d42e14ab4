"""The trainable weights as one vector."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Protocol

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from dimred.vectors.chunks import WIDTH, Parts, parallel_for
from dimred.vectors.host_memory import HostVectors, in_place, on_host


def gather(parameters: Sequence[Tensor]) -> Tensor:
    """The tensors as one float32 vector (M,), in their order."""
    return ops.concat([parameter.reshape((-1,)).astype(ms.float32) for parameter in parameters])


def along(start: Tensor, direction: Tensor, step_size: float) -> Tensor:
    """w + t d, (M,) float32."""
    return mint.add(start, direction, alpha=step_size)  # one kernel; w + t * d as written would be two


def squared_norm(vector: Tensor) -> float:
    """v'v of a vector (M,) float32."""
    if not on_host():
        return float(ops.matmul(vector, vector).asnumpy())
    values = vector.asnumpy()
    squares = np.empty(-(-len(values) // WIDTH))

    def piece(first: int, end: int) -> None:
        squares[first // WIDTH] = np.dot(values[first:end], values[first:end])

    parallel_for(len(values), piece)
    return float(squares.sum())


Term = tuple[float, Tensor]  # a factor, and a vector (M,) float32


class Weights(Protocol):
    """Parameters as one vector (M,) float32, in their order."""

    def read(self) -> Tensor:
        """A copy of the weights."""

    def write(self, vector: Tensor) -> None:
        """Put the vector into the weights, bit for bit where they are float32."""

    def put(self, *terms: Term) -> None:
        """weights <- the sum of factor * vector."""

    def add(self, factor: float, *terms: Term) -> tuple[Tensor, float]:
        """weights <- weights + factor * v, with v the sum of the terms' factor * vector; gives v, and v'v."""


def make_weights(parameters: Sequence[Parameter]) -> Weights:
    """The parameters as a vector: by NumPy where they lie in host memory, elsewhere by graphs."""
    if on_host() and all(parameter.dtype == ms.float32 for parameter in parameters):
        return HostWeights(parameters)
    return GraphWeights(parameters)


class HostWeights:
    """Float32 weights on the CPU, read and written by NumPy where they lie.

    ResNet-18's 11.2 M, on 2 cores: ``put`` takes 8 ms where an addition and a graph of 62 assignments took 21.

    Args:
        parameters: in the order of the vector.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        self._parameters = list(parameters)
        self._parts = Parts([parameter.size for parameter in parameters])
        self._vectors = HostVectors(self._parts.length)

    def read(self) -> Tensor:
        """See ``Weights``."""
        copy = self._vectors.empty()
        self._parts.each(self._in_place(), lambda piece, first, end: np.copyto(copy[first:end], piece))
        return Tensor.from_numpy(copy)

    def write(self, vector: Tensor) -> None:
        """See ``Weights``."""
        self.put((1.0, vector))

    def put(self, *terms: Term) -> None:
        """See ``Weights``."""
        vectors = _arrays(terms)
        self._parts.each(self._in_place(), lambda piece, first, end: _combine(_cut(vectors, first, end), piece))

    def add(self, factor: float, *terms: Term) -> tuple[Tensor, float]:
        """See ``Weights``."""
        vectors, total = _arrays(terms), self._vectors.empty()
        squares: dict[int, float] = {}

        def add(piece: np.ndarray, first: int, end: int) -> None:
            part = total[first:end]
            _combine(_cut(vectors, first, end), part)
            squares[first] = float(np.dot(part, part))
            piece += part * factor

        self._parts.each(self._in_place(), add)
        return Tensor.from_numpy(total), sum(squares[first] for first in sorted(squares))

    def _in_place(self) -> list[np.ndarray]:
        return [in_place(parameter).reshape(-1) for parameter in self._parameters]


HostTerm = tuple[float, np.ndarray]


def _arrays(terms: Iterable[Term]) -> list[HostTerm]:
    return [(factor, vector.asnumpy()) for factor, vector in terms]


def _cut(terms: Iterable[HostTerm], first: int, end: int) -> list[HostTerm]:
    return [(factor, vector[first:end]) for factor, vector in terms]


def _combine(terms: Sequence[HostTerm], out: np.ndarray) -> None:
    """Write the sum of factor * vector; ``out`` is none of the vectors."""
    first, *others = [vector if factor == 1 else vector * factor for factor, vector in terms]
    if not others:
        np.copyto(out, first)
        return
    np.add(first, others[0], out=out)
    for part in others[1:]:
        out += part


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

    def put(self, *terms: Term) -> None:
        """See ``Weights``."""
        self._write(_total(terms))

    def add(self, factor: float, *terms: Term) -> tuple[Tensor, float]:
        """See ``Weights``."""
        total = _total(terms)
        self._write(along(self._read(), total, factor))
        return total, squared_norm(total)


def _total(terms: Iterable[Term]) -> Tensor:
    (factor, vector), *others = terms
    total = vector if factor == 1 else vector * factor
    for factor, vector in others:
        total = along(total, vector, factor)
    return total


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
