"""The two passes over the basis P: with NumPy in host memory, or with graphs on devices or several ranks."""

import numpy as np
from mindspore import Tensor, nn, ops

from dimred.distributed.ranks import Ranks
from dimred.vectors.weights import ReusedMemory, is_on_host


class HostProjection:
    """The two passes over the basis P, with NumPy in host memory.

    Args:
        components: P, (k, M) float32 with orthonormal rows; not copied.

    Attributes:
        components: P as given.
    """

    def __init__(self, components: np.ndarray):
        self.components = components
        self._memory = ReusedMemory(components.shape[1])

    def project(self, vector: Tensor) -> np.ndarray:
        """Return P v: (M,) float32 -> (k,) float64."""
        with np.errstate(all="ignore"):  # a vector that is not finite is for the caller to notice
            return (self.components @ vector.asnumpy()).astype(np.float64)

    def back_project(self, *coordinates: np.ndarray) -> list[Tensor]:
        """Return P' z for each z: (k,) -> (M,) float32.

        Each is a separate product: BLAS takes longer for a matrix with two or three rows than for as many vectors.
        """
        return [
            Tensor.from_numpy(np.matmul(z.astype(np.float32), self.components, out=self._memory.vector()))
            for z in coordinates
        ]


class GraphProjection:
    """A projection like ``HostProjection``, but with graphs, on a device or over several ranks.

    Each of R ranks holds ceil(M / R) columns; see ``Shards``. ``project`` ends in an all-reduce of k numbers,
    ``back_project`` in a gather of M.

    Args:
        components: P, (k, M) float32 with orthonormal rows.
        ranks: the job's ranks; all of them call the methods.

    Attributes:
        components: the columns of P that this rank holds, Tensor (k, ceil(M / R)) float32.
    """

    def __init__(self, components: np.ndarray, ranks: Ranks):
        shards = Shards(components.shape[1], ranks.rank, ranks.group_size)
        # The cells get it as an argument, so that it becomes neither a parameter nor a constant in a graph. A copy is
        # the result of an operation and stays on the device; an array on the host would be copied at every call.
        self.components = Tensor.from_numpy(shards.columns(components)).copy()
        self._project = _Project(shards)
        self._back_project = _BackProject(shards)

    def project(self, vector: Tensor) -> np.ndarray:
        coordinates: np.ndarray = self._project(self.components, vector).asnumpy().astype(np.float64)
        return coordinates

    def back_project(self, *coordinates: np.ndarray) -> list[Tensor]:
        return [self._back_project(self.components, Tensor(z.astype(np.float32))) for z in coordinates]


class Shards:
    """How M columns are split over R ranks, in shards of equal width L = ceil(M / R), as collectives need.

    If a rank owns one column fewer (``columns_of_rank``), its shard also spans the next rank's first column, as zeros,
    so every shard lies within the M columns.

    Args:
        n_columns: M.
        rank: this rank's number, from 0.
        group_size: R.

    Attributes:
        several: whether R > 1.
        part: the columns that this rank owns, as a slice of the M columns.
        first, end: where this rank's shard begins and ends among the M columns.
        places: for each rank, where its own columns begin and end among the R * L gathered columns.
    """

    def __init__(self, n_columns: int, rank: int, group_size: int):
        slices = [columns_of_rank(n_columns, other, group_size) for other in range(group_size)]
        width = -(-n_columns // group_size)
        self.several = group_size > 1
        self.part = slices[rank]
        self.first = slices[rank].start
        self.end = slices[rank].start + width
        self.places = tuple((r * width, r * width + part.stop - part.start) for r, part in enumerate(slices))

    def columns(self, components: np.ndarray) -> np.ndarray:
        """Return this rank's columns, (k, L) float32, contiguous; with one rank, a view of all columns."""
        n_zeros = self.end - self.part.stop
        part = components[:, self.part]
        return np.ascontiguousarray(np.pad(part, ((0, 0), (0, n_zeros))) if n_zeros else part, dtype=np.float32)


class _Project(nn.Cell):
    def __init__(self, shards: Shards):
        super().__init__(auto_prefix=False)
        self.first = shards.first
        self.end = shards.end
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
        columns = self.all_gather(ops.matmul(coordinates, components))
        return ops.concat([columns[first:end] for first, end in self.places])


Projection = HostProjection | GraphProjection


def make_projection(components: np.ndarray, ranks: Ranks) -> Projection:
    """Make the object that projects onto a basis and back.

    A single process on the CPU does not copy P: a memory-mapped basis stays in the page cache, which all processes on
    the host share. Otherwise this rank's columns are copied to the device.

    Args:
        components: P, (k, M) float32 with orthonormal rows.
        ranks: the job's ranks; they share out the columns of P.
    """
    if is_on_host() and (ranks.group_size == 1 or len(components) == 0):
        return HostProjection(components)
    return GraphProjection(components, ranks)


def columns_of_rank(n_columns: int, rank: int, group_size: int) -> slice:
    """Return which of M columns ``rank`` owns among R ranks: ``floor(rank M / R) : floor((rank + 1) M / R)``.

    The ranks' slices follow each other, cover every column once, and differ in length by at most one; the longest has
    ``ceil(M / R)`` columns. Any M and R are allowed; with R > M some ranks own nothing.
    """
    return slice(rank * n_columns // group_size, (rank + 1) * n_columns // group_size)
