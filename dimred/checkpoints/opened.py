"""A checkpoint whose tensors are found but not loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from dimred.checkpoints.checkpoint_io import Stamp, open_unchanged, read_index, stamp_of
from dimred.checkpoints.layout import WeightLayout, is_counter, is_statistic, trainable_layout
from dimred.checkpoints.stored_tensor import StoredTensor, reading


@dataclass(frozen=True)
class Checkpoint:
    """One network, in one file or in shards.

    Attributes:
        path: the file, or the folder of the shards.
        files: the file, or the shards.
        tensors: name -> (number of the file, place of the tensor in it).
        stamps: of the files; they tell whether a file has changed.
        step: of training; 0 where it isn't known.
    """

    path: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, tuple[int, StoredTensor]]
    stamps: tuple[Stamp, ...]
    step: int = 0

    @cached_property
    def places(self) -> dict[str, StoredTensor]:
        """Name -> place of the tensor, whichever file it is in."""
        return {name: place for name, (_, place) in self.tensors.items()}

    @cached_property
    def layout(self) -> WeightLayout:
        """The layout of what is taken for trainable weights; CheckpointError if there are none."""
        return trainable_layout(self.places, self.path)[0]

    @cached_property
    def statistics(self) -> tuple[str, ...]:
        """Names of BatchNorm's statistics, which are averaged but are no weights."""
        return tuple(name for name, place in self.places.items() if is_statistic(name) and place.is_float)

    @cached_property
    def integers(self) -> tuple[str, ...]:
        """Names of the integer and bool tensors that count nothing, such as quantised weights: they have no mean."""
        return tuple(name for name, place in self.places.items() if place.is_integer and not is_counter(name, place))

    def names_in(self, number: int) -> tuple[str, ...]:
        """Return the names of a file's tensors, in the order of their bytes."""
        inside = [(place.pieces[:1], name) for name, (file, place) in self.tensors.items() if file == number]
        return tuple(name for _, name in sorted(inside))

    def open(self, number: int) -> BinaryIO:
        """Open one of the files; CheckpointError if it has changed."""
        return open_unchanged(self.files[number], self.stamps[number])


def open_file(path: Path) -> Checkpoint:
    """Find the tensors of a single checkpoint file, and compare it with its checksum if it carries one.

    Raises:
        CheckpointError: as ``read_checkpoint``.
    """
    tensors = {name: (0, place) for name, place in read_index(path, verify=True).items()}
    return Checkpoint(path, (path,), tensors, stamps_of((path,)))


def stamps_of(files: tuple[Path, ...]) -> tuple[Stamp, ...]:
    """Return the stamps of files as they are now; CheckpointError if one can't be read."""
    found = []
    for file in files:
        with reading(file):
            found.append(stamp_of(file.stat()))
    return tuple(found)
