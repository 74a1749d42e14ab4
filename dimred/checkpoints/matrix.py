"""The snapshots of a series as the rows of one N x M matrix, read in blocks of columns."""

import hashlib
import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from dimred.checkpoints.checkpoint_io import Checkpoint, open_checkpoint
from dimred.checkpoints.layout import CHUNK, WeightLayout, hash_columns
from dimred.checkpoints.series import CheckpointSeries, SnapshotEntry
from dimred.checkpoints.trainable import trainable_layout
from dimred.errors import CheckpointError, SeriesError

_log = logging.getLogger(__name__)


class BadSnapshotError(CheckpointError):
    """The snapshot of a row can't be used; the message says why, in whole sentences."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


@dataclass(frozen=True)
class _Row:
    entry: SnapshotEntry
    checkpoint: Checkpoint


class WeightMatrix:
    """N snapshots of M weights as a matrix that is streamed: at most two blocks of columns are in memory.

    A snapshot's tensors are stored uncompressed, so blocks are read directly from all files.

    Args:
        series: the snapshots; each becomes a row, oldest first.
        layout: the parameters and their order. Default: the series' own; for a folder without a manifest, what
            ``trainable_layout`` makes of the snapshot with the most entries.
        skip_bad: leave out snapshots that can't be used, with a warning in the log, instead of raising.

    Attributes:
        layout: the layout of every row.

    Raises:
        CheckpointError: a snapshot is missing, truncated, damaged, lacks a parameter, or has one of another shape; or
            none fits the layout that is given; or there is none, and nothing shows which entries are weights.
        SeriesError: no snapshot is left.
    """

    def __init__(self, series: CheckpointSeries, layout: WeightLayout | None = None, *, skip_bad: bool = False) -> None:
        self._skip_bad = skip_bad
        self._rows: list[_Row] = []
        rows: list[_Row] = []
        for entry, path in zip(series.entries, series.paths, strict=True):
            with self._leaving_out(len(rows)):
                # If no manifest has the digest of the weights, a file is compared with its own checksum, if it has one.
                rows.append(_Row(entry, Checkpoint.open(path, verify=not entry.digest)))
        if not rows:
            raise _no_snapshot(series)
        misfits = [] if layout is None else [row.checkpoint.misfit(layout) for row in rows]
        if misfits and all(misfits):
            raise CheckpointError(
                f"None of the {len(rows)} snapshots in {series.directory} fits the network (the last: {misfits[-1]}). "
                "A snapshot has the weights that were trained when it was taken; freeze the same ones now "
                "(requires_grad=False), or take snapshots while these are trained."
            )
        layout = layout or series.layout or _layout_of_weights([row.checkpoint for row in rows])
        for row in rows:
            with self._leaving_out(len(self._rows)):
                row.checkpoint.check_fit(layout)
                # The digests in a manifest are of the weights in the manifest's order.
                digest = row.entry.digest if layout == series.layout else ""
                self._rows.append(replace(row, entry=replace(row.entry, digest=digest)))
        if not self._rows:
            raise _no_snapshot(series)
        self.layout = layout

    @contextmanager
    def _leaving_out(self, row: int) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            if not self._skip_bad:
                raise BadSnapshotError(row, str(error)) from None
            _log.warning(f"left out: {error}")

    @property
    def entries(self) -> tuple[SnapshotEntry, ...]:
        """Return the snapshots in use, one for each row."""
        return tuple(row.entry for row in self._rows)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the files of the snapshots in use."""
        return tuple(row.checkpoint.path for row in self._rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Return (N, M)."""
        return len(self._rows), self.layout.size

    @cached_property
    def dtype(self) -> np.dtype:
        """Return the type in which columns are read: float64 if a weight is stored as such, otherwise float32.

        Snapshots that differ by less than float32 resolves can only be told apart before they are rounded.
        """
        dtypes = (row.checkpoint.tensors[name].dtype for row in self._rows for name in self.layout.names)
        return np.dtype(np.float64 if any(dtype == np.float64 for dtype in dtypes) else np.float32)

    def check_unchanged(self) -> None:
        """Check that the files are as they were when they were opened; BadSnapshotError if one is not."""
        for number, row in enumerate(self._rows):
            try:
                row.checkpoint.check_unchanged()
            except CheckpointError as error:
                raise BadSnapshotError(number, str(error)) from None

    def leave_out(self, number: int) -> None:
        """Remove the row of this number, counted from 0."""
        del self._rows[number]

    def read(self, start: int, out: np.ndarray) -> None:
        """Fill ``out``, (N, width) of the type ``dtype``, with the columns from ``start`` on.

        Numbers that float32 can't hold become infinite.

        Raises:
            CheckpointError: a file is gone, or too short.
        """
        layout = self.layout
        for row, target in zip(self._rows, out, strict=True):
            with open_checkpoint(row.checkpoint.path) as file:
                number = bisect_right(layout.offsets, start) - 1
                n_read = 0
                while n_read < target.size:
                    skip = start + n_read - layout.offsets[number]
                    count = min(layout.sizes[number] - skip, target.size - n_read)
                    if count > 0:
                        tensor = row.checkpoint.tensors[layout.names[number]]
                        tensor.read_part(file.fileno(), skip, target[n_read : n_read + count])
                        n_read += count
                    number += 1
                if target.dtype == np.float64:
                    target[np.abs(target) > np.finfo(np.float32).max] = np.inf

    def blocks(self, digests: Sequence["hashlib._Hash"] = ()) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all columns in blocks: (number of the first column, values (N, up to ``CHUNK``)).

        The next block is read into a second buffer while the caller works on this one. A block is valid until the
        next one is asked for.

        Args:
            digests: a SHA-256 for each row, to which ``hash_columns`` adds each block before the next is yielded.

        Raises:
            CheckpointError: as for ``read``.
        """
        n_rows, n_columns = self.shape
        buffers = [np.empty((n_rows, min(CHUNK, n_columns)), self.dtype) for _ in range(2)]

        def fetch(number: int) -> np.ndarray:
            block = buffers[number % 2][:, : n_columns - number * CHUNK]
            self.read(number * CHUNK, block)
            return block

        def add(block: np.ndarray) -> None:
            for digest, row in zip(digests, block, strict=False):
                hash_columns(digest, row)

        with ThreadPoolExecutor(1, "read-ahead") as reader, ThreadPoolExecutor(1, "hash") as hasher:
            next_block = reader.submit(fetch, 0)
            for number, first in enumerate(range(0, n_columns, CHUNK)):
                block = next_block.result()
                if first + CHUNK < n_columns:
                    next_block = reader.submit(fetch, number + 1)
                hash_task = hasher.submit(add, block)
                yield first, block
                hash_task.result()  # before its buffer is filled again


def _layout_of_weights(checkpoints: Sequence[Checkpoint]) -> WeightLayout:
    """Return the layout of the weights if neither the user nor a manifest gives one; log the other entries."""
    # A snapshot that was cut between two tensors has fewer of them, and does not fit this layout.
    fullest = max(checkpoints, key=lambda checkpoint: len(checkpoint.tensors))
    layout = trainable_layout(fullest.tensors, fullest.path)
    if left_out := [name for name in fullest.tensors if name not in layout.names]:
        first = ", ".join(map(repr, left_out[:2]))
        _log.info(f"{len(left_out)} entries of each snapshot are not weights and are left out, such as {first}")
    return layout


def _no_snapshot(series: CheckpointSeries) -> SeriesError:
    return SeriesError(f"None of the {len(series)} snapshots in {series.directory} can be used.")
