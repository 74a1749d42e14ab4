"""Parameters side by side in one piece of host memory.

On the CPU a parameter's numbers lie in ordinary memory, which NumPy can own. With all of them in one piece, to read,
write or move them is one operation on one vector instead of one for each parameter.
"""

from collections.abc import Sequence
from itertools import accumulate

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

_CACHE_LINE = 64
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_NUMPY_TYPES = _INTEGERS | {"bool", "float16", "float32", "float64"}


def on_host() -> bool:
    """Whether tensors lie in host memory, where NumPy reads and writes them without a copy."""
    return bool(ms.get_context("device_target") == "CPU")


def empty_vector(length: int) -> np.ndarray:
    """An uninitialised vector (length,) float32.

    It begins where a cache line does. The order in which a kernel adds numbers up can depend on where they begin, and a
    run is to end in the same bytes each time.
    """
    return _empty_bytes(4 * length).view(np.float32)


class HostMemory:
    """One piece of memory that holds the parameters' numbers, in their order.

    The parameters stay what they are, for graphs and for PyNative; only the place of their numbers changes. Someone may
    give a parameter another place (``load_param_into_net`` does): before each use it is brought back, with the values
    it has then.

    Args:
        parameters: all of types that ``holds`` knows, on the CPU.
        alignment: each parameter begins at a multiple of so many bytes, the first at that of a cache line.
    """

    def __init__(self, parameters: Sequence[Parameter], alignment: int = 1):
        kinds = [np.dtype(_type_name(parameter)) for parameter in parameters]
        lengths = [parameter.size * kind.itemsize for parameter, kind in zip(parameters, kinds, strict=True)]
        firsts = list(accumulate((-(-length // alignment) * alignment for length in lengths), initial=0))
        self._bytes = _empty_bytes(firsts.pop())
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


def _empty_bytes(length: int) -> np.ndarray:
    memory = np.empty(length + _CACHE_LINE, np.uint8)
    first = -_address(memory) % _CACHE_LINE
    return memory[first : first + length]


def _type_name(parameter: Parameter) -> str:
    return str(parameter.dtype).lower()


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
