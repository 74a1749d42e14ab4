"""WeightMatrix: the snapshots of a series as the rows of one N x M matrix, read in blocks of columns."""

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dimred.errors import CheckpointError, SeriesError
from dimred.files.digest import CHUNK, chunk_digests
from dimred.weights.checkpoint_io import check_checksum, open_checkpoint, read_index
from dimred.weights.layout import WeightLayout
from dimred.weights.manifest import SnapshotEntry
from dimred.weights.series import CheckpointSeries
from dimred.weights.stored_tensor import BFLOAT16, StoredTensor, read_exactly, to_float32
from dimred.weights.trainable_names import trainable_names

__all__ = ["Skipped", "WeightMatrix"]

_FLOAT32 = np.dtype("<f4")
_Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Skipped:
    """A snapshot that was left out, and why."""

    entry: SnapshotEntry
    reason: str


@dataclass(frozen=True)
class _Row:
    entry: SnapshotEntry
    path: Path
    stamp: _Stamp
    tensors: tuple[StoredTensor, ...]


class WeightMatrix:
    """N snapshots of M weights, streamed: no more than a block of columns is in memory.

    A snapshot's tensors stand uncompressed in its file, so a block is read from all files directly, without a copy of
    the matrix on the disk.

    Args:
        series: the snapshots; each becomes a row, oldest first.
        layout: which parameters, in which order. Default: the series' own; and for a folder without a manifest what
            ``trainable_names`` takes for weights in the snapshot that has most of them.
        skip_bad: leave out snapshots that can't be used, instead of raising.

    Raises:
        CheckpointError: a snapshot is missing, truncated, damaged, lacks a parameter, or has one of another shape.
        SeriesError: no snapshot is left.
    """

    def __init__(self, series: CheckpointSeries, layout: WeightLayout | None = None, *, skip_bad: bool = False) -> None:
        self.directory = series.directory
        self.skipped: tuple[Skipped, ...] = ()
        self.ignored: tuple[str, ...] = ()
        indexes: list[tuple[SnapshotEntry, Path, Mapping[str, StoredTensor], _Stamp]] = []
        rows: list[_Row] = []
        for entry, path in zip(series.entries, series.paths, strict=True):
            try:
                indexes.append((entry, path, *_read_index(entry, path)))
            except CheckpointError as error:
                self._skip(entry, error, skip_bad)
        if not indexes:
            raise _none_left(series)
        chosen = layout or series.layout
        if chosen is None:
            chosen, self.ignored = _guess(indexes)
        for entry, path, index, stamp in indexes:
            try:
                # The manifest's digest is of the weights in the manifest's order.
                known = entry if chosen == series.layout else replace(entry, digest="")
                rows.append(_Row(known, path, stamp, _select(index, chosen, path)))
            except CheckpointError as error:
                self._skip(entry, error, skip_bad)
        if not rows:
            raise _none_left(series)
        self.layout = chosen
        self._rows = tuple(rows)

    def _skip(self, entry: SnapshotEntry, error: CheckpointError, skip_bad: bool) -> None:
        if not skip_bad:
            raise error
        self.skipped += (Skipped(entry, str(error)),)

    @property
    def entries(self) -> tuple[SnapshotEntry, ...]:
        """The snapshots in use, one for each row."""
        return tuple(row.entry for row in self._rows)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return len(self._rows), self.layout.size

    @property
    def identity(self) -> list[list[str | int]]:
        """What tells this matrix from another without reading it: each row's name, step, and its file's stamp."""
        return [[row.entry.file, row.entry.step, *row.stamp] for row in self._rows]

    def without(self, number: int, reason: str) -> "WeightMatrix":
        """The same matrix without row ``number``, which is then listed in ``skipped``."""
        other = object.__new__(WeightMatrix)
        other.__dict__.update(self.__dict__)
        other.skipped = (*self.skipped, Skipped(self._rows[number].entry, reason))
        other._rows = (*self._rows[:number], *self._rows[number + 1 :])
        return other

    def read(self, start: int, out: np.ndarray) -> None:
        """Fill ``out``, float32 (N, width), with the columns from ``start`` on.

        Raises:
            CheckpointError: a file is gone, or is not the one it was.
        """
        for row, target in zip(self._rows, out, strict=True):
            with open_checkpoint(row.path) as file:
                if _stamp(file.fileno()) != row.stamp:
                    raise CheckpointError(
                        f"{row.path} changed while it was being read. Nothing may write to the folder meanwhile; run "
                        "the command again."
                    )
                self._read_row(file.fileno(), row, start, target)

    def _read_row(self, descriptor: int, row: _Row, start: int, out: np.ndarray) -> None:
        offsets, sizes = self.layout.offsets, self.layout.sizes
        number = bisect_right(offsets, start) - 1
        done = 0
        while done < out.size:
            skip = start + done - offsets[number]
            count = min(sizes[number] - skip, out.size - done)
            if count > 0:
                _read_part(descriptor, row.tensors[number], skip, out[done : done + count], row.path)
                done += count
            number += 1

    def blocks(
        self, width: int, start: int = 0, digests: Mapping[int, np.ndarray] | None = None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """The columns from ``start`` on, as (first column, float32 (N, up to ``width``)) blocks.

        The next block is read while the caller works on this one, into a second buffer: a block is valid until the
        next one is asked for.

        Args:
            width: columns in a block, a multiple of ``CHUNK``.
            start: first column, a multiple of ``CHUNK``.
            digests: row -> uint8 (chunks, 32), filled with the SHA-256 of the row's chunks, while the caller works on
                them; complete up to a block when the next one is there.
        """
        n_rows, n_columns = self.shape
        buffers = [np.empty((n_rows, min(width, n_columns - start)), np.float32) for _ in range(2)]

        def fetch(first: int, buffer: np.ndarray) -> np.ndarray:
            block = buffer[:, : min(width, n_columns - first)]
            self.read(first, block)
            return block

        def digest(first: int, block: np.ndarray) -> None:
            for row, chunks in (digests or {}).items():
                found = chunk_digests(block[row])
                chunks[first // CHUNK :][: len(found)] = found

        with ThreadPoolExecutor(1, "read-ahead") as reader, ThreadPoolExecutor(1, "hash") as hasher:
            coming = reader.submit(fetch, start, buffers[0])
            for number, first in enumerate(range(start, n_columns, width)):
                block = coming.result()
                if first + width < n_columns:
                    coming = reader.submit(fetch, first + width, buffers[(number + 1) % 2])
                hashed = hasher.submit(digest, first, block)
                yield first, block
                hashed.result()  # before its buffer is filled again


def _none_left(series: CheckpointSeries) -> SeriesError:
    return SeriesError(f"None of the {len(series)} snapshots in {series.directory} can be used.")


def _guess(
    indexes: Sequence[tuple[SnapshotEntry, Path, Mapping[str, StoredTensor], _Stamp]],
) -> tuple[WeightLayout, tuple[str, ...]]:
    """The layout of the snapshot with most weights: one that was cut between two tensors has fewer, and is found."""
    guesses = [trainable_names(index, path) for _, path, index, _ in indexes]
    return max(guesses, key=lambda guess: guess[0].size)


def _read_index(entry: SnapshotEntry, path: Path) -> tuple[Mapping[str, StoredTensor], _Stamp]:
    with open_checkpoint(path) as file:
        stamp = _stamp(file.fileno())
    if stamp[0] != entry.bytes:
        raise CheckpointError(
            f"{path} has {stamp[0]} bytes; the manifest says {entry.bytes}. It was truncated or replaced; restore it, "
            "or leave it out with --skip-bad."
        )
    if not entry.digest:
        check_checksum(path)  # no manifest tells the weights' digest; the file may tell its own
    return read_index(path), stamp


def _stamp(descriptor: int) -> _Stamp:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns, status.st_ino


def _select(index: Mapping[str, StoredTensor], layout: WeightLayout, path: Path) -> tuple[StoredTensor, ...]:
    tensors = []
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        tensor = index.get(name)
        if tensor is None:
            raise CheckpointError(f"{path} has no parameter {name!r}, which the network or the other snapshots have.")
        if tensor.shape != shape:
            raise CheckpointError(f"{path}: the parameter {name!r} has shape {tensor.shape} instead of {shape}.")
        if not tensor.is_float:
            raise CheckpointError(f"{path}: the parameter {name!r} has the type {tensor.dtype}, not a float type.")
        tensors.append(tensor)
    return tuple(tensors)


def _read_part(descriptor: int, tensor: StoredTensor, skip: int, out: np.ndarray, path: Path) -> None:
    storage = tensor.storage
    raw = out if storage == _FLOAT32 else np.empty(out.size, storage)
    target = raw.view(np.uint8)
    first, done, passed = skip * storage.itemsize, 0, 0
    for offset, length in tensor.pieces:
        inside = max(first + done - passed, 0)
        count = min(length - inside, target.size - done)
        if count > 0:
            read_exactly(descriptor, target[done : done + count], offset + inside, path)
            done += count
        passed += length
    if raw is not out:
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, and is refused as such
            out[:] = to_float32(raw) if tensor.dtype == BFLOAT16 else raw
