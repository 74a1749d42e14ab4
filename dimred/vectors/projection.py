"""Down into the subspace and back up: the two passes over the basis."""

from typing import Protocol

import numpy as np
from mindspore import Tensor, nn, ops

from dimred.distributed.ranks import Ranks, columns_of_rank
from dimred.vectors.host_memory import on_host
from dimred.vectors.host_projection import HostProjection


class Projection(Protocol):
    """The basis P, (k, M) orthonormal rows, and the two passes over it; each reads it once, at memory bandwidth.

    Attributes:
        n_components: k.
    """

    n_components: int

    def project(self, vector: Tensor) -> np.ndarray:
        """P v: (M,) float32 -> (k,) float64 on the host."""

    def back_project(self, *coordinates: np.ndarray) -> list[Tensor]:
        """P' z for each z: (k,) -> (M,) float32."""


def make_projection(components: np.ndarray, ranks: Ranks) -> Projection:
    """The passes over a basis: in host memory where it lies there whole, on the device or over several ranks by graphs.

    Args:
        components: P, (k, M) float32; with several ranks, only this one's columns are read. Alone it is not copied: a
            memory-mapped basis stays in the page cache, once for all processes of a host.
        ranks: who shares the columns.
    """
    if on_host() and ranks.group_size == 1:
        return HostProjection(components)
    return GraphProjection(components, ranks)


class GraphProjection:
    """The passes by MindSpore's products.

    With R ranks each holds M / R of the columns. ``project`` ends in an all-reduce of k numbers, ``back_project`` in a
    gather of M. Each back-projection is a pass of its own: one product with two rows takes longer than two products.

    Args:
        components, ranks: see ``make_projection``.
    """

    def __init__(self, components: np.ndarray, ranks: Ranks):
        self.n_components = len(components)
        shards = Shards(components.shape[1], ranks.rank, ranks.group_size)
        # Handed to the cells as an argument, so that it becomes neither a parameter nor a constant of a graph.
        self._components = Tensor.from_numpy(shards.columns(components))
        several = ranks.group_size > 1
        self._project = _ProjectShard(shards) if several else _Project(auto_prefix=False)
        self._back_project = _BackProjectShard(shards) if several else _BackProject(auto_prefix=False)

    def project(self, vector: Tensor) -> np.ndarray:
        """See ``Projection``."""
        coordinates: np.ndarray = self._project(self._components, vector).asnumpy().astype(np.float64)
        return coordinates

    def back_project(self, *coordinates: np.ndarray) -> list[Tensor]:
        """See ``Projection``."""
        return [self._back_project(self._components, Tensor(z.astype(np.float32))) for z in coordinates]


class Shards:
    """M columns over R ranks, as pieces of equal width L = ceil(M / R), which collectives need.

    A rank that owns one column fewer (``columns_of_rank``) has a column of zeros at its end. It stands where the next
    rank's first column is, so that every piece lies within the M columns.

    Attributes:
        first, width: this rank's piece is ``first : first + width``.
        places: of each rank, where its own columns lie in the R L gathered ones.
    """

    def __init__(self, n_columns: int, rank: int, group_size: int):
        self._own = columns_of_rank(n_columns, rank, group_size)
        self.first = self._own.start
        self.width = -(-n_columns // group_size)
        owned = [columns_of_rank(n_columns, r, group_size) for r in range(group_size)]
        self.places = tuple((r * self.width, r * self.width + s.stop - s.start) for r, s in enumerate(owned))

    def columns(self, components: np.ndarray) -> np.ndarray:
        """This rank's columns, (k, L) float32, contiguous; a view of all of them where there is one rank."""
        own = components[:, self._own]
        if own.shape[1] == self.width:
            return np.ascontiguousarray(own, dtype=np.float32)
        padded = np.zeros((len(components), self.width), np.float32)
        padded[:, : own.shape[1]] = own
        return padded


class _Project(nn.Cell):
    def construct(self, components: Tensor, vector: Tensor) -> Tensor:
        return ops.matmul(components, vector)


class _BackProject(nn.Cell):
    def construct(self, components: Tensor, coordinates: Tensor) -> Tensor:
        return ops.matmul(coordinates, components)


class _ProjectShard(nn.Cell):
    def __init__(self, shards: Shards):
        super().__init__(auto_prefix=False)
        self.first, self.end = shards.first, shards.first + shards.width
        self.all_reduce = ops.AllReduce()

    def construct(self, components: Tensor, vector: Tensor) -> Tensor:
        return self.all_reduce(ops.matmul(components, vector[self.first : self.end]))


class _BackProjectShard(nn.Cell):
    def __init__(self, shards: Shards):
        super().__init__(auto_prefix=False)
        self.places = shards.places
        self.all_gather = ops.AllGather()

    def construct(self, components: Tensor, coordinates: Tensor) -> Tensor:
        gathered = self.all_gather(ops.matmul(coordinates, components))
        return ops.concat([gathered[first:end] for first, end in self.places])
