"""Weights, vectors and the basis in host memory, where NumPy reads and writes them in place."""

import mmap
import weakref
from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor

from dimred.vectors.chunks import Segments, parallel_for

Term = tuple[float, Tensor]  # a factor, and a vector (M,) float32

_ROW_STRIP = 1 << 18  # columns read of one row at a time: a mebibyte without a break, and its part of v in the cache
_STRIP = 1 << 13  # columns of all rows at a time: a mebibyte for k = 32; twice as many take twice as long


class HostVectors:
    """Parameters, and tensors of the same shapes, as one vector (M,) float32.

    Args:
        parameters: float32, in the order of the vector.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        self._parameters = list(parameters)
        self._segments = Segments([parameter.size for parameter in parameters])
        self._pool = VectorPool(self._segments.length)

    def read(self) -> Tensor:
        """A copy of the parameters."""
        return self.flatten(self._parameters)

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Float32 tensors of the parameters' shapes, such as their gradients, as one vector."""
        joined = self._pool.empty()
        self._segments.for_each(_flat(tensors), lambda chunk, first, end: np.copyto(joined[first:end], chunk))
        return Tensor.from_numpy(joined)

    def put(self, *terms: Term) -> None:
        """parameters <- the sum of factor * vector; one vector with the factor 1 is put bit for bit."""
        vectors = _arrays(terms)
        self._segments.for_each(_flat(self._parameters), lambda chunk, first, end: _sum(vectors, first, end, chunk))

    def add(self, factor: float, *terms: Term) -> tuple[Tensor, float]:
        """parameters <- parameters + factor * v, where v is the sum of the terms; returns v, and v'v."""
        vectors, total, squares = _arrays(terms), self._pool.empty(), dict[int, float]()

        def add(chunk: np.ndarray, first: int, end: int) -> None:
            part = total[first:end]
            _sum(vectors, first, end, part)
            squares[first] = float(np.dot(part, part))
            chunk += part * factor

        self._segments.for_each(_flat(self._parameters), add)
        return Tensor.from_numpy(total), sum(squares[first] for first in sorted(squares))

    def squared_norm(self, vector: Tensor) -> float:
        """v'v."""
        values, squares = vector.asnumpy(), dict[int, float]()

        def square(first: int, end: int) -> None:
            squares[first] = float(np.dot(values[first:end], values[first:end]))

        parallel_for(len(values), square)
        return sum(squares[first] for first in sorted(squares))


class HostProjection:
    """The two passes over the basis P: each reads it once, in strips that don't depend on the number of threads.

    Args:
        components: P, (k, M) float32 with orthonormal rows; not copied.
    """

    def __init__(self, components: np.ndarray):
        self.n_components = len(components)
        self._components = components
        self._pool = VectorPool(components.shape[1])

    def project(self, vector: Tensor) -> np.ndarray:
        """P v: (M,) float32 -> (k,) float64."""
        values, n_columns = vector.asnumpy(), self._components.shape[1]
        products = np.empty((-(-n_columns // _ROW_STRIP), self.n_components))

        def strip(first: int, end: int) -> None:
            part = values[first:end]
            products[first // _ROW_STRIP] = [np.dot(row[first:end], part) for row in self._components]

        parallel_for(n_columns, strip, _ROW_STRIP)
        return products.sum(axis=0)

    def back_project(self, *coordinates: np.ndarray) -> list[Tensor]:
        """P' z for each z: (k,) -> (M,) float32. All together take as long as one."""
        together = np.zeros((max(len(coordinates), 2), self.n_components), np.float32)  # BLAS is slower with one row
        together[: len(coordinates)] = coordinates
        vectors = [self._pool.empty() for _ in coordinates]

        def strip(first: int, end: int) -> None:
            values = together @ self._components[:, first:end]
            for vector, row in zip(vectors, values, strict=False):
                vector[first:end] = row

        parallel_for(self._components.shape[1], strip, _STRIP)
        return [Tensor.from_numpy(vector) for vector in vectors]


class HostCopies:
    """Saves parameters of any type, and puts them back byte for byte."""

    def __init__(self, parameters: Sequence[Parameter]):
        self._parameters = list(parameters)

    def save(self) -> list[np.ndarray]:
        return [parameter.asnumpy().copy() for parameter in self._parameters]

    def restore(self, saved: Sequence[np.ndarray]) -> None:
        for parameter, value in zip(self._parameters, saved, strict=True):
            parameter.asnumpy()[...] = value


class VectorPool:
    """Float32 vectors of one length, whose memory is used again once nothing refers to them.

    Memory fresh from the system costs more than what is done with it: copying 11.2 M numbers takes 12 ms into a new
    array and 7 ms into a used one. Each vector begins at a page boundary: the order in which a kernel adds numbers up
    can depend on the address, and a run is to end in the same bytes each time.
    """

    def __init__(self, length: int):
        self._length = length
        self._spare: list[mmap.mmap] = []

    def empty(self) -> np.ndarray:
        """A vector (length,), uninitialised."""
        memory = self._spare.pop() if self._spare else mmap.mmap(-1, 4 * self._length, flags=_PRIVATE)
        # No array owns the memory, so every view of the vector, and every tensor on it, keeps the vector itself alive.
        vector = np.frombuffer(memory, np.float32)
        weakref.finalize(vector, self._spare.append, memory).atexit = False
        return vector


_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def _flat(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """The tensors' own memory: to write to the arrays of parameters is to write to the parameters.

    Every graph and every operation sees what is written. (Giving parameters other memory would save a copy or two, but
    graphs with control flow that were compiled before go on reading the old one.) Ask again after anything else may
    have written to the parameters; this waits for operations that PyNative has not finished.
    """
    return [tensor.asnumpy().reshape(-1) for tensor in tensors]


def _arrays(terms: Sequence[Term]) -> list[tuple[float, np.ndarray]]:
    return [(factor, vector.asnumpy()) for factor, vector in terms]


def _sum(terms: Sequence[tuple[float, np.ndarray]], first: int, end: int, out: np.ndarray) -> None:
    """out <- the sum of factor * vector[first:end]; ``out`` is part of none of the vectors."""
    head, *others = [vector[first:end] if factor == 1 else vector[first:end] * factor for factor, vector in terms]
    if not others:
        np.copyto(out, head)
        return
    np.add(head, others[0], out=out)
    for part in others[1:]:
        out += part
