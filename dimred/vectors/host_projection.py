"""The two passes over the basis in host memory: NumPy on strips of columns, a few threads.

For 11.2 M weights, k = 32, on 2 cores: both back-projections of a step in one pass take as long as one alone, where
MindSpore's product with two rows takes longer than two products. And MindSpore runs a graph of a few kernels in the
calling thread, which then spins beside the two threads that compute: a median of 125 ms for P v where this one takes
105. The strips don't depend on the number of threads, so neither do the sums.
"""

import numpy as np
from mindspore import Tensor

from dimred.vectors.chunks import parallel_for
from dimred.vectors.host_memory import HostVectors

_ROW_STRIP = 1 << 18  # columns read of one row at a time: a mebibyte without a break, and its part of v in the cache
_STRIP = 1 << 13  # columns of all rows at a time: a mebibyte for k = 32; twice as many take twice as long


class HostProjection:
    """The basis P, orthonormal rows, in host memory; not copied, so a memory-mapped basis stays in the page cache.

    Args:
        components: P, (k, M) float32.
    """

    def __init__(self, components: np.ndarray):
        self.n_components = len(components)
        self._components = components
        self._vectors = HostVectors(components.shape[1])

    def project(self, vector: Tensor) -> np.ndarray:
        """See ``Projection``."""
        values, n_columns = vector.asnumpy(), self._components.shape[1]
        products = np.empty((-(-n_columns // _ROW_STRIP), self.n_components))

        def strip(first: int, end: int) -> None:
            piece = values[first:end]
            products[first // _ROW_STRIP] = [np.dot(row[first:end], piece) for row in self._components]

        parallel_for(n_columns, strip, _ROW_STRIP)
        return products.sum(axis=0)

    def back_project(self, *coordinates: np.ndarray) -> list[Tensor]:
        """See ``Projection``. A strip of P comes from memory once, and is used for all coordinates in the cache."""
        together = np.zeros((max(len(coordinates), 2), self.n_components), np.float32)  # BLAS is slower with one row
        together[: len(coordinates)] = coordinates
        vectors = [self._vectors.empty() for _ in coordinates]

        def strip(first: int, end: int) -> None:
            values = together @ self._components[:, first:end]
            for vector, row in zip(vectors, values, strict=False):
                vector[first:end] = row

        parallel_for(self._components.shape[1], strip, _STRIP)
        return [Tensor.from_numpy(vector) for vector in vectors]
