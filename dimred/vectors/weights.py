"""Treat all weights as one vector: with NumPy, in place in host memory, or with MindSpore graphs."""

import weakref
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

Term = tuple[float, Tensor]  # a factor, and a vector (M,) float32

# Vectors are summed in pieces that fit into the caches, so that temporaries never reach main memory. With pieces a
# quarter as long, NumPy's calls make it a fifth to a third slower.
_PIECE = 1 << 17  # weights
_each = ops.HyperMap()  # compiles in a second; a loop over ResNet-50's 161 weights takes ten


class HostVectors:
    """Treats parameters, or tensors of the same shapes, as one vector (M,) float32, with NumPy in host memory.

    Parameters keep their memory, so every graph and every operation sees what is written.

    Args:
        parameters: float32 parameters, in the order of the vector.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        self._parameters = list(parameters)
        ends = list(accumulate((parameter.size for parameter in parameters), initial=0))
        self._spans = [slice(first, end) for first, end in pairwise(ends)]
        self._memory = ReusedMemory(ends[-1])

    def read(self) -> Tensor:
        """Copy the parameters into a vector."""
        return self.flatten(self._parameters)

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Join float32 tensors of the parameters' shapes, such as their gradients, into one vector."""
        return Tensor.from_numpy(np.concatenate(_flat(tensors), out=self._memory.vector()))

    def put(self, *terms: Term) -> None:
        """Set the parameters to the sum of factor * vector; a single vector with the factor 1 is copied bit for bit."""
        vectors = _arrays(terms)
        for weights, span in self._pieces():
            _host_sum(vectors, span, weights)

    def add(self, factor: float, *terms: Term) -> tuple[Tensor, float]:
        """Add factor * v to the parameters, with v the sum of the terms; return v, (M,) float32, and v'v."""
        vectors = _arrays(terms)
        total = self._memory.vector()
        for weights, span in self._pieces():
            _host_sum(vectors, span, total[span])
            weights += total[span] * np.float32(factor)
        return Tensor.from_numpy(total), float(np.dot(total, total))

    def squared_norm(self, vector: Tensor) -> float:
        """Return v'v."""
        values = vector.asnumpy()
        return float(np.dot(values, values))

    def _pieces(self) -> Iterator[tuple[np.ndarray, slice]]:
        """Yield the parameters' memory in pieces, each with its span in the vector."""
        for weights, span in zip(_flat(self._parameters), self._spans, strict=True):
            for first in range(0, len(weights), _PIECE):
                piece = weights[first : first + _PIECE]
                yield piece, slice(span.start + first, span.start + first + len(piece))


class ReusedMemory:
    """A source of vectors of one length; it reuses the memory of vectors that nothing refers to any more.

    The system clears fresh memory, page by page, when it is first written. With five fresh vectors, a ResNet-18 search
    step took 1.6 times as long (median, on a virtual machine with 2 cores).

    Args:
        length: length of the vectors.
    """

    def __init__(self, length: int):
        self._length = length
        self._free: list[np.ndarray] = []

    def vector(self) -> np.ndarray:
        """Return an uninitialised vector (length,) float32."""
        memory = self._free.pop() if self._free else np.empty(self._length, np.float32)
        # Tensors and slices of the vector keep this view alive, because its base is a buffer, not an array.
        vector = np.frombuffer(memory.data, np.float32)
        weakref.finalize(vector, self._free.append, memory).atexit = False
        return vector


def _flat(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Return flat views of the tensors' own memory; this waits for operations that PyNative has not finished."""
    return [tensor.asnumpy().reshape(-1) for tensor in tensors]


def _arrays(terms: Sequence[Term]) -> list[tuple[np.float32, np.ndarray]]:
    return [(np.float32(factor), vector.asnumpy()) for factor, vector in terms]


def _host_sum(terms: Sequence[tuple[np.float32, np.ndarray]], span: slice, out: np.ndarray) -> None:
    """Write a part of the sum of factor * vector into ``out``, which must not overlap any of the vectors."""
    (factor, vector), *others = terms
    np.multiply(vector[span], factor, out=out)
    for factor, vector in others:
        out += vector[span] if factor == 1 else vector[span] * factor


class GraphVectors:
    """The same as ``HostVectors``, but with graphs, for parameters of any type on any device."""

    def __init__(self, parameters: Sequence[Parameter]):
        self._read = _Read(parameters)
        self._write = _Write(parameters)
        self._flatten = _Flatten(auto_prefix=False)

    def read(self) -> Tensor:
        return self._read()

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        return self._flatten(*tensors)  # passed as a tuple, they would be constants in the graph

    def put(self, *terms: Term) -> None:
        self._write(_graph_sum(terms))

    def add(self, factor: float, *terms: Term) -> tuple[Tensor, float]:
        total = _graph_sum(terms)
        self._write(mint.add(self._read(), total, alpha=factor))
        return total, self.squared_norm(total)

    def squared_norm(self, vector: Tensor) -> float:
        return float(ops.matmul(vector, vector).asnumpy())


def _as_vector(tensor: Tensor) -> Tensor:
    return tensor.reshape((-1,)).astype(ms.float32)


def _graph_sum(terms: Sequence[Term]) -> Tensor:
    (factor, vector), *others = terms
    total = vector if factor == 1 else vector * factor
    for factor, vector in others:
        total = mint.add(total, vector, alpha=factor)  # one kernel; total + factor * vector would take two
    return total


class _Flatten(nn.Cell):
    """A cell that joins tensors into one float32 vector (M,), in their order."""

    def construct(self, *tensors: Tensor) -> Tensor:
        return ops.concat(_each(_as_vector, tensors))


class _Read(nn.Cell):
    def __init__(self, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.weights = ms.ParameterTuple(parameters)

    def construct(self) -> Tensor:
        return ops.concat(_each(_as_vector, self.weights))


class Unflatten(nn.Cell):
    """A cell that cuts a vector (M,) into a tuple of parts with the parameters' shapes.

    Args:
        parameters: the parameters, in the order of the vector.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.weights = ms.ParameterTuple(parameters)
        self.firsts = tuple(accumulate((parameter.size for parameter in parameters[:-1]), initial=0))

    def construct(self, vector: Tensor) -> tuple[Tensor, ...]:
        return _each(ops.partial(_part, vector), self.weights, self.firsts)


def _part(vector: Tensor, weight: Parameter, first: int) -> Tensor:
    return vector[first : first + weight.size].reshape(weight.shape)


class _Write(nn.Cell):
    def __init__(self, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.weights = ms.ParameterTuple(parameters)
        self.unflatten = Unflatten(parameters)

    def construct(self, vector: Tensor) -> bool:
        return ops.depend(True, _each(_assign, self.weights, self.unflatten(vector)))


def _assign(parameter: Parameter, value: Tensor) -> Tensor:
    return ops.assign(parameter, value.astype(parameter.dtype))


class HostCopies:
    """Copies parameters of any type into host memory (``save``), and restores them byte for byte (``restore``).

    Args:
        parameters: the parameters.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        self._parameters = list(parameters)

    def save(self) -> list[np.ndarray]:
        return [parameter.asnumpy().copy() for parameter in self._parameters]

    def restore(self, values: Sequence[np.ndarray]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.asnumpy()[...] = value


class GraphCopies(nn.Cell):
    """Copies like ``HostCopies``, but with graphs on the device, also inside a larger graph.

    Args:
        parameters: the parameters, at least one.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.parameters = ms.ParameterTuple(parameters)

    def construct(self) -> tuple[Tensor, ...]:
        return _each(_copy, self.parameters)

    def save(self) -> tuple[Tensor, ...]:
        return self()

    def restore(self, values: Sequence[Tensor]) -> None:
        _each(_assign, self.parameters, values)


def _copy(parameter: Parameter) -> Tensor:
    return parameter.copy()


Vectors = HostVectors | GraphVectors


def make_vectors(parameters: Sequence[Parameter]) -> Vectors:
    """Make the view of the parameters as one vector: NumPy if they are float32 in host memory, otherwise graphs."""
    all_float32 = all(parameter.dtype == ms.float32 for parameter in parameters)
    return HostVectors(parameters) if is_on_host() and all_float32 else GraphVectors(parameters)


def make_copies(parameters: Sequence[Parameter]) -> HostCopies | GraphCopies:
    """Make an object that saves and restores the parameters."""
    return HostCopies(parameters) if is_on_host() or not parameters else GraphCopies(parameters)


def is_on_host() -> bool:
    """Return whether the device is the host itself, so that NumPy can work on its memory."""
    return bool(ms.get_context("device_target") == "CPU")
