"""Put a network into training or evaluation mode."""

from collections.abc import Iterator
from contextlib import contextmanager

from mindspore import nn


class TrainingMode:
    """A guard that puts a step back into training mode, for example after a measurement.

    If any cell with trainable parameters is not in training mode, it puts the whole step into it, frozen parts
    included. A cell whose parameters are all frozen does not trigger this. Only the cells' flags are read.

    Args:
        step: the cell that is called.
        network: the part of the step that is trained.
    """

    def __init__(self, step: nn.Cell, network: nn.Cell):
        self._step = step
        self._cells = [cell for _, cell in network.cells_and_names() if cell.trainable_params()]

    def ensure(self) -> None:
        """Put the step into training mode unless all its trained cells already are."""
        if not all(cell.training for cell in self._cells):
            self._step.set_train(True)


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
