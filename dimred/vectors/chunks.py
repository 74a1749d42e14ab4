"""Work on long vectors in host memory: chunk by chunk, in several threads."""

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import accumulate

import numpy as np
from threadpoolctl import ThreadpoolController

WIDTH = 1 << 17  # numbers in a chunk: half a mebibyte of each vector; with shorter ones Python's overhead shows


def parallel_for(length: int, work: Callable[[int, int], object], width: int = WIDTH) -> None:
    """Call ``work(first, end)`` for chunks of at most ``width`` that cover 0 ... length, several at a time.

    The chunks don't depend on the number of threads. BLAS gets one thread for each of ours, because together they
    already use every core. NumPy does not warn of numbers that are not finite.
    """
    n_threads = _n_threads()
    share = max(-(-length // (width * n_threads)), 1) * width

    def work_share(first: int) -> None:
        last = min(first + share, length)
        with np.errstate(all="ignore"):
            for start in range(first, last, width):
                work(start, min(start + width, last))

    with _blas().limit(limits=1, user_api="blas"):
        for _ in _threads(n_threads).map(work_share, range(0, length, share)):
            pass


class Segments:
    """The places of arrays that together make up one vector.

    Args:
        sizes: of the arrays, in the order of the vector.
    """

    def __init__(self, sizes: Sequence[int]):
        self._firsts = list(accumulate(sizes, initial=0))

    @property
    def length(self) -> int:
        """Length of the vector."""
        return self._firsts[-1]

    def for_each(self, arrays: Sequence[np.ndarray], work: Callable[[np.ndarray, int, int], object]) -> None:
        """Call ``work(chunk, first, end)`` for chunks of the flat arrays; a chunk is ``first : end`` of the vector."""

        def walk(first: int, end: int) -> None:
            number = bisect_right(self._firsts, first) - 1
            while first < end:
                start = self._firsts[number]
                stop = min(end, self._firsts[number + 1])
                if first < stop:
                    work(arrays[number][first - start : stop - start], first, stop)
                first, number = stop, number + 1

        parallel_for(self.length, walk)


def _n_threads() -> int:
    """As many as BLAS and MindSpore may use: where ranks share a host, the launcher has divided its cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else os.cpu_count() or 1


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


@cache
def _threads(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, "chunks")
