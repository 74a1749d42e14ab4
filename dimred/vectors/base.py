"""All weights as one vector, wherever they are: the only module that asks whether tensors are in host memory."""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from dimred.distributed.ranks import Ranks
from dimred.vectors.graph import GraphCopies, GraphProjection, GraphVectors
from dimred.vectors.host import HostCopies, HostProjection, HostVectors


class NoProjection:
    """The passes over a basis without rows, which cost nothing.

    Args:
        n_columns: M.
    """

    def __init__(self, n_columns: int):
        self._zero = Tensor(np.zeros(n_columns, np.float32))

    def project(self, vector: Tensor) -> np.ndarray:
        """(M,) -> (0,)."""
        return np.zeros(0)

    def back_project(self, *coordinates: np.ndarray) -> list[Tensor]:
        """(0,) -> zeros (M,), for each."""
        return [self._zero for _ in coordinates]


Vectors = HostVectors | GraphVectors
Projection = HostProjection | GraphProjection | NoProjection
Copies = HostCopies | GraphCopies


def make_vectors(parameters: Sequence[Parameter]) -> Vectors:
    """The parameters as a vector: by NumPy where they are float32 in host memory, otherwise by graphs."""
    all_float32 = all(parameter.dtype == ms.float32 for parameter in parameters)
    return HostVectors(parameters) if _on_host() and all_float32 else GraphVectors(parameters)


def make_projection(components: np.ndarray, ranks: Ranks) -> Projection:
    """The two passes over a basis P, (k, M) float32.

    A single process on the CPU does not copy it: a memory-mapped basis stays in the page cache, once for all processes
    of a host. Otherwise this rank's columns are copied to the device.
    """
    if len(components) == 0:
        return NoProjection(components.shape[1])
    if _on_host() and ranks.group_size == 1:
        return HostProjection(components)
    return GraphProjection(components, ranks)


def make_copies(parameters: Sequence[Parameter]) -> Copies:
    """Saves and restores the parameters."""
    return HostCopies(parameters) if _on_host() or not parameters else GraphCopies(parameters)


def _on_host() -> bool:
    return bool(ms.get_context("device_target") == "CPU")
