"""Count where a program reads a tensor, for which the host waits until the device has computed it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from mindspore import Tensor

_METHODS = ("asnumpy", "numpy", "item", "tolist", "get_bytes", "__array__", "__float__", "__int__", "__bool__",
            "__index__", "__complex__", "__contains__", "__iter__", "__str__", "__repr__")  # fmt: skip


@contextmanager
def watched_reads(note: Callable[[], object]) -> Iterator[None]:
    """Call ``note`` once for each read inside the block; a method that calls another one counts once."""
    inside = False

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal inside
            if inside:
                return method(*arguments, **options)
            note()
            inside = True
            try:
                return method(*arguments, **options)
            finally:
                inside = False

        return call

    with ExitStack() as patches:
        for name in _METHODS:
            if hasattr(Tensor, name):
                patches.enter_context(patch.object(Tensor, name, watched(getattr(Tensor, name))))
        yield
