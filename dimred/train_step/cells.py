"""The places in a network that hold a cell, and other cells put there; and what was compiled for cells, freed."""

from typing import NamedTuple

from mindspore import nn
from mindspore.graph.api import _cell_graph_executor


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


def free_graphs(step: nn.Cell) -> None:
    """Free what MindSpore compiled for a step that is not used any more.

    It would keep a graph that has a gradient to the end of the process, because that graph holds the cell whose end
    would free it: 216 MB for ResNet-18, 470 MB for a transformer of three layers.
    """
    for _, cell in step.cells_and_names():
        if cell.compile_cache:
            _cell_graph_executor.del_net_res(cell, cell.compile_cache)
            cell.compile_cache.clear()
