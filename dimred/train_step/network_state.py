"""Find a network's cells and BatchNorm statistics, and set its training or evaluation mode."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import mindspore as ms
from mindspore import Parameter, mint, nn

from dimred.errors import ConfigError

# Cells with statistics. ``nn.BatchNorm3d`` has none of its own: it holds an ``nn.BatchNorm2d``.
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
# For Ascend only. Their statistics have different names, and their momentum is defined differently.
_OTHERS = (mint.nn.BatchNorm1d, mint.nn.BatchNorm2d, mint.nn.BatchNorm3d, mint.nn.SyncBatchNorm)


class Place(NamedTuple):
    """A place for a cell in a network; a cell that is used several times has several places.

    Attributes:
        path: the cell's name in the network, without the names of wrappers from ``mindspore.amp``.
        owner: the cell that holds it.
        name: its name in the owner.
        cell: the cell itself.
    """

    path: str
    owner: nn.Cell
    name: str
    cell: nn.Cell

    def put(self, cell: nn.Cell) -> None:
        """Replace the cell in this place; the parameters of the new one keep their names."""
        self.owner._cells[self.name] = cell  # setattr would rename the parameters
        if isinstance(self.owner, nn.SequentialCell):
            self.owner.cell_list = list(self.owner._cells.values())


def places(network: nn.Cell) -> list[Place]:
    """List every place for a cell in the network; ``Cell.name_cells`` would omit the second place of one cell."""
    return [
        Place(f"{path}.{name}".lstrip(".").replace("_backbone.", ""), owner, name, cell)
        for path, owner in network.cells_and_names()
        for name, cell in owner._cells.items()
        if cell is not None
    ]


def check_dense(network: nn.Cell) -> None:
    """Check that every gradient of the network is a tensor, which a step that adds or scales gradients needs.

    Raises:
        ConfigError: an embedding's gradient has only the rows that were looked up.
    """
    for name, cell in network.cells_and_names():
        if isinstance(cell, nn.EmbeddingLookup) and cell.sparse and cell.embedding_table.requires_grad:
            raise ConfigError(
                f"the cell {name!r} of the network, {type(cell).__name__}, has sparse gradients, which only a step "
                "without micro-batches, ranks, clipping, a loss scale and a search can take; use nn.Embedding, or "
                "target='DEVICE' with sparse=False"
            )


def check_names(step: nn.Cell) -> None:
    """Check that no two parameters of a step have one name.

    MindSpore would rename all of them when it compiles the step, so that no checkpoint would fit the network.

    Raises:
        ConfigError: two have.
    """
    known: dict[str, Parameter] = {}
    for parameter in step.get_parameters():
        if known.setdefault(parameter.name, parameter) is not parameter:
            raise ConfigError(
                f"two parameters are named {parameter.name!r}: one of the network, and another one of the network, the "
                "optimizer or a part of the step; rename the network's"
            )


class TrainingMode:
    """A guard that puts a step back into training mode, for example after a measurement.

    It sets the whole step, frozen parts included, as soon as one cell with trainable parameters is not in training
    mode. A cell whose parameters are all frozen does not cause this. Only the cells' flags are read.

    Args:
        step: the cell that is called.
        network: the part of the step that is trained.
    """

    def __init__(self, step: nn.Cell, network: nn.Cell):
        self._step = step
        self._cells = [cell for _, cell in network.cells_and_names() if cell.trainable_params()]

    def ensure(self) -> None:
        """Put the step into training mode unless its trained cells are all in it."""
        if not all(cell.training for cell in self._cells):
            self._step.set_train(True)


@contextmanager
def clearing_failures() -> Iterator[None]:
    """Clear what MindSpore keeps of a gradient in PyNative that an error, or ctrl-C, ends inside the block.

    Otherwise graphs of gradients are then compiled for second derivatives, which fails for cross entropy; and after a
    second error no tensor can be indexed by a number any more.
    """
    try:
        yield
    except BaseException:
        if ms.get_context("mode") == ms.PYNATIVE_MODE:
            with suppress(ImportError):  # it is private
                from mindspore.common.api import _pynative_executor

                _pynative_executor.clear_res()
        raise


@contextmanager
def evaluating(network: nn.Cell) -> Iterator[None]:
    """Put a network into evaluation mode inside the block; afterwards restore the mode of each cell."""
    before = [(cell, cell.training, cell.phase) for _, cell in network.cells_and_names()]
    network.set_train(False)
    try:
        yield
    finally:
        for cell, training, phase in before:
            cell.add_flags(training=training)
            cell.phase = phase


def batch_norms(network: nn.Cell) -> list[nn.Cell]:
    """List every BatchNorm in the network; raise ConfigError for one of ``mindspore.mint``."""
    layers = []
    for name, layer in network.cells_and_names():
        if isinstance(layer, _OTHERS):
            kind = type(layer).__name__
            raise ConfigError(
                f"{name!r} of the network is a mint.nn.{kind}, whose statistics dimred does not know; use nn.{kind}"
            )
        if isinstance(layer, BATCH_NORMS):
            layers.append(layer)
    return layers


def moving_statistics(network: nn.Cell) -> list[Parameter]:
    """List the moving mean and variance of every BatchNorm in the network; raise as ``batch_norms``."""
    return [value for layer in batch_norms(network) for value in (layer.moving_mean, layer.moving_variance)]
