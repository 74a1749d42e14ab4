"""A batch cut into micro-batches, for batches that don't fit into memory at once."""

from collections.abc import Sequence
from typing import NamedTuple

from mindspore import Tensor

from dimred.errors import ConfigError


class MicroBatch(NamedTuple):
    """One piece of a batch.

    Attributes:
        inputs: the network's inputs, each with this piece's rows.
        share: its rows by the whole batch's; the shares of a batch sum to 1.
    """

    inputs: tuple[Tensor, ...]
    share: float


def cut(inputs: Sequence[Tensor], rows: int | None) -> list[MicroBatch]:
    """Cut a batch into micro-batches of ``rows`` rows; the last one may have fewer.

    Args:
        inputs: the network's inputs; their first dimension counts the rows.
        rows: None for the whole batch in one piece.

    Raises:
        ConfigError: an input has no rows, or another number of them.
    """
    if rows is None:
        return [MicroBatch(tuple(inputs), 1.0)]
    shapes = [tuple(value.shape) for value in inputs]
    if not shapes or any(not shape or shape[0] != shapes[0][0] or shape[0] == 0 for shape in shapes):
        raise ConfigError(
            f"micro_batch_size is {rows}, but the step's inputs have the shapes {shapes}; to be cut into micro-batches "
            "they must all have the same number of rows in their first dimension"
        )
    n_rows = shapes[0][0]
    if rows >= n_rows:
        return [MicroBatch(tuple(inputs), 1.0)]
    return [
        MicroBatch(tuple(value[first : first + rows] for value in inputs), min(rows, n_rows - first) / n_rows)
        for first in range(0, n_rows, rows)
    ]
