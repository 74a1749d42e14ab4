"""Down into the subspace and back up: the two passes over the basis.

The basis is handed in as an argument, so that it never becomes a parameter of the network or a constant of a graph.
"""

from mindspore import Tensor, nn, ops


class Project(nn.Cell):
    """P v: (k, M), (M,) -> (k,). Runs at memory bandwidth; the basis is read once."""

    def construct(self, components: Tensor, vector: Tensor) -> Tensor:
        return ops.matmul(components, vector)


class BackProject(nn.Cell):
    """P' z: (k, M), (k,) -> (M,). Runs at memory bandwidth; the basis is read once."""

    def construct(self, components: Tensor, coordinates: Tensor) -> Tensor:
        return ops.matmul(coordinates, components)
