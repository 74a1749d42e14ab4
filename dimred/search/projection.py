"""Down into the subspace and back up: the two passes over the basis."""

from functools import cache

import numpy as np
from mindspore import Tensor, nn, ops
from threadpoolctl import ThreadpoolController

from dimred.ranks import Ranks
from dimred.subspace.sharding import columns_of_rank
from dimred.train_step.host_memory import empty_vector, on_host
from dimred.train_step.pieces import in_pieces

_STRIP = 8192  # columns of 32 rows fill half of a core's 2 MiB; 16,384 took twice as long


class Subspace:
    """The basis P, orthonormal rows, and the two passes over it; each reads it once, at memory bandwidth.

    In a single process on the CPU several vectors are back-projected in one pass (two of 11.2 M weights, k = 32: 70 ms,
    as long as one of them alone). Elsewhere each takes a pass of its own: MindSpore's product with two rows takes
    longer than two products.

    With R ranks each holds M / R of the columns. ``project`` ends in an all-reduce of k numbers, ``back_project`` in a
    gather of M.

    Args:
        components: P, (k, M) float32; with several ranks, only this one's columns are read. Alone it is not copied: a
            memory-mapped basis stays in the page cache, once for all processes of a host.
        ranks: who shares the columns.
    """

    def __init__(self, components: np.ndarray, ranks: Ranks):
        self.n_components = len(components)
        shards = Shards(components.shape[1], ranks.rank, ranks.group_size)
        # Handed to the cells as an argument, so that it becomes neither a parameter nor a constant of a graph.
        self._components = Tensor.from_numpy(shards.columns(components))
        several = ranks.group_size > 1
        self._rows = components if on_host() and not several else None
        self._project = _ProjectShard(shards) if several else _Project(auto_prefix=False)
        self._back_project = _BackProjectShard(shards) if several else _BackProject(auto_prefix=False)

    def project(self, vector: Tensor) -> np.ndarray:
        """P v: (M,) float32 -> (k,) float64 on the host."""
        coordinates: np.ndarray = self._project(self._components, vector).asnumpy().astype(np.float64)
        return coordinates

    def back_project(self, *coordinates: np.ndarray) -> list[Tensor]:
        """P' z for each z: (k,) -> (M,) float32."""
        if self._rows is not None and len(coordinates) > 1:
            return [Tensor.from_numpy(vector) for vector in _back_project_together(self._rows, coordinates)]
        return [self._back_project(self._components, Tensor(z.astype(np.float32))) for z in coordinates]


def _back_project_together(components: np.ndarray, coordinates: tuple[np.ndarray, ...]) -> np.ndarray:
    """P' z for n coordinates z: (n, M) float32. A strip of P is read from memory once and used n times in the cache."""
    together = np.stack(coordinates).astype(np.float32)
    vectors = empty_vector(len(together) * components.shape[1]).reshape(len(together), -1)

    def strip(first: int, end: int) -> None:
        np.matmul(together, components[:, first:end], out=vectors[:, first:end])

    with _blas().limit(limits=1, user_api="blas"):  # the threads are those of the strips
        in_pieces(components.shape[1], strip, _STRIP)
    return vectors


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


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
