"""Weights, vectors and the basis in host memory, where NumPy reads and writes them in place."""

import weakref
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
from mindspore import Parameter, Tensor

Term = tuple[float, Tensor]  # a factor, and a vector (M,) float32

# A sum of several vectors is made in pieces that stay in the caches: its temporaries never reach the memory. Pieces
# of a quarter of the size take a fifth to a third longer, because of NumPy's calls.
_PIECE = 1 << 17  # weights


class HostVectors:
    """Parameters, and tensors of the same shapes, as one vector (M,) float32.

    Parameters keep their memory, so that every graph and every operation sees what is written. (A graph with control
    flow that was compiled before would go on reading the old memory of a parameter that is given other.)

    Args:
        parameters: float32, in the order of the vector.
    """

    def __init__(self, parameters: Sequence[Parameter]):
        self._parameters = list(parameters)
        ends = list(accumulate((parameter.size for parameter in parameters), initial=0))
        self._places = [slice(first, end) for first, end in pairwise(ends)]
        self._memory = ReusedMemory(ends[-1])

    def read(self) -> Tensor:
        """Copy the parameters."""
        return self.flatten(self._parameters)

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Join float32 tensors of the parameters' shapes, such as their gradients, to one vector."""
        return Tensor.from_numpy(np.concatenate(_flat(tensors), out=self._memory.vector()))

    def put(self, *terms: Term) -> None:
        """Set the parameters to the sum of factor * vector; one vector with the factor 1 is put bit for bit."""
        vectors = _arrays(terms)
        for weights, place in self._pieces():
            _sum(vectors, place, weights)

    def add(self, factor: float, *terms: Term) -> tuple[Tensor, float]:
        """Add factor * v to the parameters, where v is the sum of the terms; return v, and v'v."""
        vectors, total = _arrays(terms), self._memory.vector()
        for weights, place in self._pieces():
            _sum(vectors, place, total[place])
            weights += total[place] * np.float32(factor)
        return Tensor.from_numpy(total), float(np.dot(total, total))

    def squared_norm(self, vector: Tensor) -> float:
        """Return v'v."""
        values = vector.asnumpy()
        return float(np.dot(values, values))

    def _pieces(self) -> Iterator[tuple[np.ndarray, slice]]:
        """Yield the parameters' memory in pieces, each with its place in the vector."""
        for weights, place in zip(_flat(self._parameters), self._places, strict=True):
            for first in range(0, len(weights), _PIECE):
                piece = weights[first : first + _PIECE]
                yield piece, slice(place.start + first, place.start + first + len(piece))


class HostProjection:
    """The two passes over the basis P.

    Args:
        components: P, (k, M) float32 with orthonormal rows; not copied.
    """

    def __init__(self, components: np.ndarray):
        self.n_components = len(components)
        self._components = components
        self._memory = ReusedMemory(components.shape[1])

    def project(self, vector: Tensor) -> np.ndarray:
        """Return P v: (M,) float32 -> (k,) float64."""
        with np.errstate(all="ignore"):  # of numbers that are not finite
            return (self._components @ vector.asnumpy()).astype(np.float64)

    def back_project(self, *coordinates: np.ndarray) -> list[Tensor]:
        """Return P' z for each z: (k,) -> (M,) float32.

        Each is a product of its own: a matrix of two or three rows takes BLAS longer than as many vectors.
        """
        return [
            Tensor.from_numpy(np.matmul(z.astype(np.float32), self._components, out=self._memory.vector()))
            for z in coordinates
        ]


class HostCopies:
    """Copies of parameters of any type, restored byte for byte."""

    def __init__(self, parameters: Sequence[Parameter]):
        self._parameters = list(parameters)

    def save(self) -> list[np.ndarray]:
        return [parameter.asnumpy().copy() for parameter in self._parameters]

    def restore(self, saved: Sequence[np.ndarray]) -> None:
        for parameter, value in zip(self._parameters, saved, strict=True):
            parameter.asnumpy()[...] = value


class ReusedMemory:
    """Vectors of one length, each in memory of an earlier one that nothing refers to any more.

    Memory fresh from the system is cleared, page by page, as it is first written. With five fresh vectors a step of
    ResNet-18's search took 1.6 times as long in the median, on a virtual machine of 2 cores.

    Args:
        length: of the vectors.
    """

    def __init__(self, length: int):
        self._length = length
        self._free: list[np.ndarray] = []

    def vector(self) -> np.ndarray:
        """Return a vector (length,) float32 that is not initialised."""
        memory = self._free.pop() if self._free else np.empty(self._length, np.float32)
        # A view that is no array's: each tensor on the vector, and each part of it, keeps it alive, and not the memory.
        vector = np.frombuffer(memory.data, np.float32)
        weakref.finalize(vector, self._free.append, memory).atexit = False
        return vector


def _flat(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Return the tensors' own memory, flat; this waits for operations that PyNative has not finished."""
    return [tensor.asnumpy().reshape(-1) for tensor in tensors]


def _arrays(terms: Sequence[Term]) -> list[tuple[np.float32, np.ndarray]]:
    return [(np.float32(factor), vector.asnumpy()) for factor, vector in terms]


def _sum(terms: Sequence[tuple[np.float32, np.ndarray]], place: slice, out: np.ndarray) -> None:
    """Write a part of the sum of factor * vector into ``out``, which is part of none of the vectors."""
    (factor, vector), *others = terms
    np.multiply(vector[place], factor, out=out)
    for factor, vector in others:
        out += vector[place] if factor == 1 else vector[place] * factor
