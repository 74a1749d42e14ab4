"""A checkpoint with its entries sorted into weights, running statistics and integers."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dimred.checkpoints.checkpoint_io import Checkpoint, open_checkpoint
from dimred.checkpoints.layout import WeightLayout
from dimred.checkpoints.trainable import is_statistic, trainable_layout


@dataclass(frozen=True)
class SavedNetwork(Checkpoint):
    """A checkpoint to merge, or to copy the rest of the result from.

    Attributes:
        step: its step of training; 0 if it isn't known.
        given_layout: which entries are weights, if the user says so.
    """

    step: int = 0
    given_layout: WeightLayout | None = None

    @cached_property
    def layout(self) -> WeightLayout:
        """Return the layout of the weights: the user's, else what ``trainable_layout`` finds, which may raise."""
        return self.given_layout or trainable_layout(self.tensors, self.path)

    @cached_property
    def statistics(self) -> tuple[str, ...]:
        """Return the names of BatchNorm statistics, which are averaged but not trained.

        If the user says which entries are weights, these are the statistics of the same modules.
        """
        names = [name for name, tensor in self.tensors.items() if tensor.is_float and is_statistic(name, self.tensors)]
        if self.given_layout is not None:
            modules = {name.rpartition(".")[0] for name in self.given_layout.names}
            names = [name for name in names if name.rpartition(".")[0] in modules]
        return tuple(names)

    @cached_property
    def integers(self) -> tuple[str, ...]:
        """Return the names of integer and bool tensors of two or more dimensions, which have no mean.

        Numbers and vectors of integers are counters, seeds or indices, and are copied.
        """
        return tuple(name for name, tensor in self.tensors.items() if tensor.is_integer and len(tensor.shape) > 1)

    def read(self, name: str) -> np.ndarray:
        """Read a tensor, bfloat16 as float32; CheckpointError if its file can't be read."""
        tensor = self.tensors[name]
        with open_checkpoint(tensor.file) as file:
            return tensor.read(file.fileno())
