"""Tensors in host memory, where NumPy reads and writes them as they lie."""

import mmap
import weakref

import mindspore as ms
import numpy as np
from mindspore import Parameter


def on_host() -> bool:
    """Whether tensors lie in host memory: on the CPU."""
    return bool(ms.get_context("device_target") == "CPU")


def in_place(parameter: Parameter) -> np.ndarray:
    """The numbers of a parameter on the CPU, where they lie: to write to the array is to write to the parameter.

    Every graph and every operation sees what is written. (To give parameters other memory would spare a copy or two,
    but graphs with control flow that were compiled before go on reading the old one.) Ask again after anything else may
    have written to the parameter; this waits for operations that PyNative has not finished.
    """
    values: np.ndarray = parameter.asnumpy()
    return values


class HostVectors:
    """Long float32 vectors of one length, whose memory is used again once nothing refers to them.

    Memory fresh from the system costs more than what is done with it: to copy 11.2 M numbers takes 12 ms into a new
    array and 7 ms into a used one. Each vector begins with a page of memory: the order in which a kernel adds numbers
    up can depend on where they begin, and a run is to end in the same bytes each time.

    Args:
        length: of each vector.
    """

    def __init__(self, length: int):
        self._length = length
        self._spare: list[mmap.mmap] = []

    def empty(self) -> np.ndarray:
        """A vector (length,), uninitialised."""
        memory = self._spare.pop() if self._spare else self._pages()
        # No array owns the memory, so every view of the vector, and every tensor on it, keeps the vector itself alive.
        vector = np.frombuffer(memory, np.float32)
        weakref.finalize(vector, self._spare.append, memory).atexit = False
        return vector

    def _pages(self) -> mmap.mmap:
        return mmap.mmap(-1, 4 * self._length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
