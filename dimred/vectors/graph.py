"""Weights, vectors and the basis on a device or over several ranks, by MindSpore's graphs."""

from collections.abc import Sequence
from itertools import accumulate

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from dimred.distributed.ranks import Ranks, columns_of_rank
from dimred.vectors.host import Term

_each = ops.HyperMap()  # which a graph compiles in a second; for a loop over ResNet-50's 161 weights it takes ten


class GraphVectors:
    """The same as ``HostVectors``, for parameters of any type on any device."""

    def __init__(self, parameters: Sequence[Parameter]):
        self._read = _Read(parameters)
        self._write = _Write(parameters)
        self._flatten = _Flatten(auto_prefix=False)

    def read(self) -> Tensor:
        return self._read()

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        return self._flatten(*tensors)  # as a tuple their values would be constants of the graph

    def put(self, *terms: Term) -> None:
        self._write(_sum(terms))

    def add(self, factor: float, *terms: Term) -> tuple[Tensor, float]:
        total = _sum(terms)
        self._write(mint.add(self._read(), total, alpha=factor))
        return total, self.squared_norm(total)

    def squared_norm(self, vector: Tensor) -> float:
        return float(ops.matmul(vector, vector).asnumpy())


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Join the tensors to one float32 vector (M,), in their order."""
    return ops.concat(_each(_as_vector, tuple(tensors)))


def _as_vector(tensor: Tensor) -> Tensor:
    return tensor.reshape((-1,)).astype(ms.float32)


def _sum(terms: Sequence[Term]) -> Tensor:
    (factor, vector), *others = terms
    total = vector if factor == 1 else vector * factor
    for factor, vector in others:
        total = mint.add(total, vector, alpha=factor)  # one kernel; total + factor * vector would be two
    return total


class _Flatten(nn.Cell):
    def construct(self, *tensors: Tensor) -> Tensor:
        return flatten(tensors)


class _Read(nn.Cell):
    def __init__(self, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.weights = ms.ParameterTuple(parameters)

    def construct(self) -> Tensor:
        return flatten(self.weights)


class Unflatten(nn.Cell):
    """Cuts a vector (M,) into a tuple of parts in the parameters' shapes.

    Args:
        parameters: in the order of the vector.
        order: the same parameters in the order of the parts; None for the vector's.
    """

    def __init__(self, parameters: Sequence[Parameter], order: Sequence[Parameter] | None = None):
        super().__init__(auto_prefix=False)
        firsts = accumulate((parameter.size for parameter in parameters[:-1]), initial=0)
        first = {id(parameter): number for parameter, number in zip(parameters, firsts, strict=True)}
        self.weights = ms.ParameterTuple(parameters if order is None else order)
        self.firsts = tuple(first[id(weight)] for weight in self.weights)

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


def _copy(parameter: Parameter) -> Tensor:
    return parameter.copy()


class GraphCopies(nn.Cell):
    """The same as ``HostCopies``, by graphs, also within a graph; needs at least one parameter."""

    def __init__(self, parameters: Sequence[Parameter]):
        super().__init__(auto_prefix=False)
        self.parameters = ms.ParameterTuple(parameters)

    def construct(self) -> tuple[Tensor, ...]:
        return _each(_copy, self.parameters)

    def save(self) -> tuple[Tensor, ...]:
        return self()

    def restore(self, saved: Sequence[Tensor]) -> None:
        _each(_assign, self.parameters, saved)


class GraphProjection:
    """The same as ``HostProjection``, on a device or over several ranks.

    With R ranks each holds M / R of the columns. ``project`` ends in an all-reduce of k numbers, ``back_project`` in a
    gather of M. Each back-projection is a pass of its own: one product with two rows takes longer than two products.
    """

    def __init__(self, components: np.ndarray, ranks: Ranks):
        self.n_components = len(components)
        shards = Shards(components.shape[1], ranks.rank, ranks.group_size)
        # Handed to the cells as an argument, so that it becomes neither a parameter nor a constant of a graph. What an
        # operation gave stays on the device; an array of the host would be copied there with every call of a graph.
        self._components = Tensor.from_numpy(shards.columns(components)).copy()
        self._project = _Project(shards)
        self._back_project = _BackProject(shards)

    def project(self, vector: Tensor) -> np.ndarray:
        coordinates: np.ndarray = self._project(self._components, vector).asnumpy().astype(np.float64)
        return coordinates

    def back_project(self, *coordinates: np.ndarray) -> list[Tensor]:
        return [self._back_project(self._components, Tensor(z.astype(np.float32))) for z in coordinates]


class Shards:
    """M columns over R ranks, in shards of equal width L = ceil(M / R), which collectives need.

    A rank that owns one column fewer (``columns_of_rank``) has a column of zeros at its end. It is where the next
    rank's first column is, so every shard lies within the M columns. This rank's shard is ``first : end``; each rank's
    own columns stand at its ``places`` among the R L gathered ones.
    """

    def __init__(self, n_columns: int, rank: int, group_size: int):
        owned = [columns_of_rank(n_columns, other, group_size) for other in range(group_size)]
        width = -(-n_columns // group_size)
        self.several = group_size > 1
        self.own, self.first, self.end = owned[rank], owned[rank].start, owned[rank].start + width
        self.places = tuple((r * width, r * width + own.stop - own.start) for r, own in enumerate(owned))

    def columns(self, components: np.ndarray) -> np.ndarray:
        """Return this rank's columns, (k, L) float32, contiguous; a view of all of them for one rank."""
        missing = self.end - self.own.stop
        own = components[:, self.own]
        return np.ascontiguousarray(np.pad(own, ((0, 0), (0, missing))) if missing else own, dtype=np.float32)


class _Project(nn.Cell):
    def __init__(self, shards: Shards):
        super().__init__(auto_prefix=False)
        self.first, self.end = shards.first, shards.end
        self.all_reduce = ops.AllReduce() if shards.several else None

    def construct(self, components: Tensor, vector: Tensor) -> Tensor:
        if self.all_reduce is None:
            return ops.matmul(components, vector)
        return self.all_reduce(ops.matmul(components, vector[self.first : self.end]))


class _BackProject(nn.Cell):
    def __init__(self, shards: Shards):
        super().__init__(auto_prefix=False)
        self.places = shards.places
        self.all_gather = ops.AllGather() if shards.several else None

    def construct(self, components: Tensor, coordinates: Tensor) -> Tensor:
        if self.all_gather is None:
            return ops.matmul(coordinates, components)
        gathered = self.all_gather(ops.matmul(coordinates, components))
        return ops.concat([gathered[first:end] for first, end in self.places])
