"""Down into the subspace and back up: the two passes over the basis."""

import numpy as np
from mindspore import Tensor, nn, ops


class Subspace:
    """The basis P, orthonormal rows, and the two passes over it; each reads it once, at memory bandwidth.

    The seam for ranks: with columns spread over ranks, ``project`` ends in an all-reduce of k numbers, and nothing else
    of the search has to know.

    Args:
        components: P, (k, M) float32, contiguous. It is not copied: a memory-mapped basis stays in the page cache, once
            for all processes of a host.
    """

    def __init__(self, components: np.ndarray):
        self.n_components = len(components)
        # Handed to the cells as an argument, so that it becomes neither a parameter nor a constant of a graph.
        self._components = Tensor.from_numpy(components)
        self._project = _Project(auto_prefix=False)
        self._back_project = _BackProject(auto_prefix=False)

    def project(self, vector: Tensor) -> np.ndarray:
        """P v: (M,) float32 -> (k,) float64 on the host."""
        coordinates: np.ndarray = self._project(self._components, vector).asnumpy().astype(np.float64)
        return coordinates

    def back_project(self, coordinates: np.ndarray) -> Tensor:
        """P' z: (k,) -> (M,) float32."""
        return self._back_project(self._components, Tensor(coordinates.astype(np.float32)))


class _Project(nn.Cell):
    def construct(self, components: Tensor, vector: Tensor) -> Tensor:
        return ops.matmul(components, vector)


class _BackProject(nn.Cell):
    def construct(self, components: Tensor, coordinates: Tensor) -> Tensor:
        return ops.matmul(coordinates, components)
