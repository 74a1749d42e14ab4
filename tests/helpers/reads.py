"""Watch how often the host reads a tensor, and waits for the device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mindspore import Tensor

# Methods of a tensor that read it.
_READS = (
    "asnumpy",
    "numpy",
    "item",
    "tolist",
    "get_bytes",
    "__array__",
    "__float__",
    "__int__",
    "__bool__",
    "__index__",
    "__complex__",
    "__contains__",
    "__iter__",
    "__str__",
    "__repr__",
)


@contextmanager
def watched_reads(note: Callable[[], object]) -> Iterator[None]:
    """Call ``note`` for each read of any tensor inside the block, at which the host waits for the device.

    A read method that calls another one is one read.
    """
    is_inside = False

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal is_inside
            if is_inside:
                return method(*arguments, **options)
            note()
            is_inside = True
            try:
                return method(*arguments, **options)
            finally:
                is_inside = False

        return call

    methods = {name: getattr(Tensor, name) for name in _READS if hasattr(Tensor, name)}
    of_bases = [name for name in methods if name not in vars(Tensor)]
    try:
        for name, method in methods.items():
            setattr(Tensor, name, watched(method))
        yield
    finally:
        for name, method in methods.items():
            setattr(Tensor, name, method)
        for name in of_bases:
            delattr(Tensor, name)
