"""Writing the rows of a basis behind the arithmetic: one thread hashes and writes, another waits for the disk.

Measured (36 snapshots of 11.2 M weights, 1.4 GB of rows): the kernel begins to write to the disk by itself only when a
tenth of the memory is dirty, which is never here; and a thread that waits for the disk in between holds up the
arithmetic. So a flush is always under way, beside the writing.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType

import numpy as np

from dimred.files.digest import CHUNK, chunk_digests
from dimred.subspace.npy_file import NpyRows
from dimred.subspace.scratch import Scratch

__all__ = ["AHEAD", "SAVE_EVERY", "WriteBehind"]

AHEAD = 2  # blocks that may be waiting or being written; the caller needs as many buffers
SAVE_EVERY = 2  # blocks; as many may be on their way to the disk while the next are written


class WriteBehind:
    """Writes blocks of rows and of the mean into a scratch folder, and saves how far it got.

    A state is saved only when what it says is on the disk.

    Args:
        scratch: the folder.
        shape: (k, M).
        start: columns that an earlier run wrote.
        digests: uint8 (chunks, 32), gets the SHA-256 of each chunk of columns.
        save: saves the state, from the columns done, P P' so far, and the digests.
        report: is told how many columns are written.
    """

    def __init__(
        self,
        scratch: Scratch,
        shape: tuple[int, int],
        start: int,
        digests: np.ndarray,
        save: Callable[[int, np.ndarray, np.ndarray], None],
        report: Callable[[int], None],
    ) -> None:
        self._digests, self._save, self._report = digests, save, report
        self._written = self._flushed = start  # columns; flushed, or about to be
        self._row_gram = np.zeros((shape[0], shape[0]))
        self._pending: list[Future[None]] = []
        self._flush: Future[None] | None = None
        with ExitStack() as stack:
            self._rows = stack.enter_context(NpyRows(scratch.components, shape, resume=start > 0))
            self._means = stack.enter_context(NpyRows(scratch.mean, shape[1:], resume=start > 0))
            self._flusher = stack.enter_context(ThreadPoolExecutor(1, "flush"))
            self._writer = stack.enter_context(ThreadPoolExecutor(1, "write-behind"))
            self._stack = stack.pop_all()

    def __enter__(self) -> "WriteBehind":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if error is None:
                for last in self._pending:
                    last.result()
                if self._flushed < self._written:
                    self._start_flush()
                if self._flush is not None:
                    self._flush.result()

    def wait_for_buffer(self) -> None:
        """Wait until fewer than ``AHEAD`` blocks are under way."""
        if len(self._pending) == AHEAD:
            self._pending.pop(0).result()

    def put(self, first: int, block: np.ndarray, mean: np.ndarray, row_gram: np.ndarray) -> None:
        """Write ``block``, float32 (k, width), and ``mean``, float32 (width,), to the columns from ``first`` on.

        Both must stay as they are until ``wait_for_buffer`` has been called ``AHEAD`` times.

        Args:
            row_gram: float64 (k, k), P P' of all columns up to the block's end.
        """
        self._pending.append(self._writer.submit(self._write, first, block, mean, row_gram.copy()))

    def _write(self, first: int, block: np.ndarray, mean: np.ndarray, row_gram: np.ndarray) -> None:
        found = chunk_digests(block)
        self._digests[first // CHUNK :][: len(found)] = found
        self._rows.write(first, block)
        self._means.write(first, mean)
        self._written, self._row_gram = first + mean.size, row_gram
        if self._written - self._flushed >= SAVE_EVERY * mean.size:
            self._start_flush()
        self._report(self._written)

    def _start_flush(self) -> None:
        if self._flush is not None:
            self._flush.result()
        self._flushed = self._written
        self._flush = self._flusher.submit(self._flush_and_save, self._written, self._row_gram, self._digests.copy())

    def _flush_and_save(self, done: int, row_gram: np.ndarray, digests: np.ndarray) -> None:
        self._rows.flush()
        self._means.flush()
        self._save(done, row_gram, digests)
