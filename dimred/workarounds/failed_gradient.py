"""After an error inside a gradient in PyNative, later graphs and tensors fail.

Graphs of gradients are then compiled for second derivatives, which fails for cross entropy; and after a second error no
tensor can be indexed by a number any more. Seen in MindSpore 2.10, not in 2.7.1. We know of no report.
``tests/workarounds`` fails once the fault is gone.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

import mindspore as ms

_Inputs = ParamSpec("_Inputs")
_Result = TypeVar("_Result")


def clearing_failures(call: Callable[_Inputs, _Result]) -> Callable[_Inputs, _Result]:
    """Let a function clear MindSpore's state of a PyNative gradient that an error or ctrl-C interrupts inside it."""

    @wraps(call)
    def guarded(*inputs: _Inputs.args, **options: _Inputs.kwargs) -> _Result:
        try:
            return call(*inputs, **options)
        except BaseException:
            if ms.get_context("mode") == ms.PYNATIVE_MODE:
                with suppress(ImportError):
                    from mindspore.common.api import _pynative_executor  # a private name, which may move

                    _pynative_executor.clear_res()
            raise

    return guarded
