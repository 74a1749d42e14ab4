"""Parameters side by side in one piece of host memory.

On the CPU a parameter's numbers lie in ordinary memory, which NumPy can own. With all of them in one piece, to read,
write or move them is one operation on one vector instead of one for each parameter.
"""

import mmap
import weakref
from collections.abc import Sequence
from itertools import accumulate

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_NUMPY_TYPES = _INTEGERS | {"bool", "float16", "float32", "float64"}


def on_host() -> bool:
    """Whether tensors lie in host memory, where NumPy reads and writes them without a copy."""
    return bool(ms.get_context("device_target") == "CPU")


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
        memory = self._spare.pop() if self._spare else _pages(4 * self._length)
        # No array owns the memory, so every view of the vector, and every tensor on it, keeps the vector itself alive.
        vector = np.frombuffer(memory, np.float32)
        weakref.finalize(vector, self._spare.append, memory).atexit = False
        return vector


class HostMemory:
    """One piece of memory that holds the parameters' numbers, in their order.

    The parameters stay what they are, for graphs and for PyNative; only the place of their numbers changes. Someone may
    give a parameter another place (``load_param_into_net`` does): before each use it is brought back, with the values
    it has then.

    Args:
        parameters: all of types that ``holds`` knows, on the CPU.
        alignment: each parameter begins at a multiple of so many bytes, the first with a page of memory.
    """

    def __init__(self, parameters: Sequence[Parameter], alignment: int = 1):
        kinds = [np.dtype(_type_name(parameter)) for parameter in parameters]
        lengths = [parameter.size * kind.itemsize for parameter, kind in zip(parameters, kinds, strict=True)]
        firsts = list(accumulate((-(-length // alignment) * alignment for length in lengths), initial=0))
        self._bytes = np.frombuffer(_pages(firsts.pop()), np.uint8)
        self._places = []
        for parameter, kind, length, first in zip(parameters, kinds, lengths, firsts, strict=True):
            place = self._bytes[first : first + length].view(kind).reshape(parameter.shape)
            self._places.append((parameter, place, _address(place)))

    @staticmethod
    def holds(parameter: Parameter) -> bool:
        """Whether NumPy has the parameter's type; bfloat16, for one, it has not."""
        return _type_name(parameter) in _NUMPY_TYPES

    def settled(self) -> np.ndarray:
        """The memory as bytes, with every parameter in it and no operation on them under way."""
        for parameter, place, address in self._places:
            values = parameter.asnumpy()  # waits for operations that PyNative has not finished
            if _address(values) != address:
                place[...] = values
                parameter.set_data(Tensor.from_numpy(place))
        return self._bytes


def _pages(n_bytes: int) -> mmap.mmap:
    return mmap.mmap(-1, max(n_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _type_name(parameter: Parameter) -> str:
    return str(parameter.dtype).lower()


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
