"""All weights as one vector: the choice between host memory and MindSpore's graphs."""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter

from dimred.distributed.ranks import Ranks
from dimred.vectors.graph import GraphCopies, GraphProjection, GraphVectors
from dimred.vectors.host import HostCopies, HostProjection, HostVectors

Vectors = HostVectors | GraphVectors
Projection = HostProjection | GraphProjection
Copies = HostCopies | GraphCopies


def make_vectors(parameters: Sequence[Parameter]) -> Vectors:
    """Make the vector of the parameters: by NumPy where they are float32 in host memory, otherwise by graphs."""
    all_float32 = all(parameter.dtype == ms.float32 for parameter in parameters)
    return HostVectors(parameters) if _on_host() and all_float32 else GraphVectors(parameters)


def make_projection(components: np.ndarray, ranks: Ranks) -> Projection:
    """Make the two passes over a basis P, (k, M) float32.

    A single process on the CPU does not copy it: a memory-mapped basis stays in the page cache, once for all processes
    of a host. Otherwise this rank's columns are copied to the device.
    """
    if _on_host() and (ranks.group_size == 1 or len(components) == 0):
        return HostProjection(components)
    return GraphProjection(components, ranks)


def make_copies(parameters: Sequence[Parameter]) -> Copies:
    """Make an object that saves and restores the parameters."""
    return HostCopies(parameters) if _on_host() or not parameters else GraphCopies(parameters)


def _on_host() -> bool:
    return bool(ms.get_context("device_target") == "CPU")
