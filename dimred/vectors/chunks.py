"""Work on long vectors in host memory: piece by piece, by several threads."""

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import accumulate

import numpy as np
from threadpoolctl import ThreadpoolController

WIDTH = 1 << 17  # numbers in a piece: half a mebibyte of each vector; with shorter ones Python's own time shows


def parallel_for(length: int, work: Callable[[int, int], object], width: int = WIDTH) -> None:
    """Call ``work(first, end)`` for pieces of at most ``width`` that together are 0 ... length, several at a time.

    The pieces don't depend on the number of threads. BLAS works in the calling thread alone: as many of them as there
    are cores are busy already. NumPy does not warn of numbers that are not finite.

    Raises:
        Exception: the first that a call of ``work`` raised.
    """
    n_threads = _n_threads()
    share = max(-(-length // (width * n_threads)), 1) * width

    def part(first: int) -> None:
        last = min(first + share, length)
        with np.errstate(all="ignore"):
            for start in range(first, last, width):
                work(start, min(start + width, last))

    with _blas().limit(limits=1, user_api="blas"):
        for _ in _threads(n_threads).map(part, range(0, length, share)):
            pass


class Parts:
    """Arrays that one after the other make up a vector.

    Args:
        sizes: of the arrays.
    """

    def __init__(self, sizes: Sequence[int]):
        self._firsts = list(accumulate(sizes, initial=0))

    @property
    def length(self) -> int:
        """Of the vector."""
        return self._firsts[-1]

    def each(self, arrays: Sequence[np.ndarray], work: Callable[[np.ndarray, int, int], object]) -> None:
        """Call ``work(piece, first, end)`` for pieces of the flat arrays, which stand at ``first : end`` in the vector.

        See ``parallel_for``.
        """

        def piece(first: int, end: int) -> None:
            number = bisect_right(self._firsts, first) - 1
            while first < end:
                start = self._firsts[number]
                stop = min(end, self._firsts[number + 1])
                if first < stop:
                    work(arrays[number][first - start : stop - start], first, stop)
                first, number = stop, number + 1

        parallel_for(self.length, piece)


def _n_threads() -> int:
    """As many as BLAS and MindSpore may use: where ranks share a host, the launcher has divided its cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else os.cpu_count() or 1


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


@cache
def _threads(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, "pieces")
