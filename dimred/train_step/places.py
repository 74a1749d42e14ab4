"""Find where a network holds its cells, and put other cells there."""

from typing import NamedTuple

from mindspore import nn


class Place(NamedTuple):
    """A place in a network that holds a cell; a cell that is used several times has several places.

    Attributes:
        path: the cell's name in the network, without the names of wrappers from ``mindspore.amp``.
        owner: the cell that holds it.
        name: the cell's name in the owner.
        cell: the cell itself.
    """

    path: str
    owner: nn.Cell
    name: str
    cell: nn.Cell

    def put(self, cell: nn.Cell) -> None:
        """Replace the cell in this place; the new cell's parameters keep their names."""
        self.owner._cells[self.name] = cell  # setattr would rename the parameters
        if isinstance(self.owner, nn.SequentialCell):
            self.owner.cell_list = list(self.owner._cells.values())


def places(network: nn.Cell) -> list[Place]:
    """List every place in the network that holds a cell; ``Cell.name_cells`` would omit a cell's second place."""
    return [
        Place(f"{path}.{name}".lstrip(".").replace("_backbone.", ""), owner, name, cell)
        for path, owner in network.cells_and_names()
        for name, cell in owner._cells.items()
        if cell is not None
    ]
