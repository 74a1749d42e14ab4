"""The places in a network that hold a cell, and other cells put there."""

from typing import NamedTuple

from mindspore import nn


class Place(NamedTuple):
    """Where a cell is in its network. A cell that is used in several places has several.

    Attributes:
        path: its name in the network; wrappers of ``mindspore.amp`` don't show in it.
        owner: the cell that holds it.
        name: its name there.
        cell: what is there.
    """

    path: str
    owner: nn.Cell
    name: str
    cell: nn.Cell

    def put(self, cell: nn.Cell) -> None:
        """Put another cell there, whose parameters keep their names."""
        self.owner._cells[self.name] = cell  # setattr would rename the parameters
        if isinstance(self.owner, nn.SequentialCell):
            self.owner.cell_list = list(self.owner._cells.values())


def places(network: nn.Cell) -> list[Place]:
    """Every place below the network. (``Cell.name_cells`` leaves out where a cell stands a second time.)"""
    return [
        Place(f"{path}.{name}".lstrip(".").replace("_backbone.", ""), owner, name, cell)
        for path, owner in network.cells_and_names()
        for name, cell in owner._cells.items()
        if cell is not None
    ]
