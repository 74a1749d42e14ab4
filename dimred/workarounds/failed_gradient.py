"""After an error inside a gradient in PyNative, later graphs and tensors fail.

MindSpore then compiles gradient graphs for second derivatives, which fails for cross entropy; and after a second error
no tensor can be indexed by a number any more. Seen in MindSpore 2.10, not in 2.7.1. We know of no report.
``tests/workarounds`` fails once the fault is gone.
"""

import importlib
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

import mindspore as ms

_log = logging.getLogger(__name__)

_Inputs = ParamSpec("_Inputs")
_Result = TypeVar("_Result")

_EXECUTOR = "_pynative_executor"  # private to MindSpore
# Up to MindSpore 2.8 it is in the second module, later in the first.
_HOMES = ("mindspore.graph.api", "mindspore.common.api")


def clearing_failures(call: Callable[_Inputs, _Result]) -> Callable[_Inputs, _Result]:
    """Make a function clear what MindSpore keeps of a PyNative gradient that an error or ctrl-C interrupts."""

    @wraps(call)
    def guarded(*inputs: _Inputs.args, **options: _Inputs.kwargs) -> _Result:
        try:
            return call(*inputs, **options)
        except BaseException:
            if ms.get_context("mode") == ms.PYNATIVE_MODE:
                _clear()
            raise

    return guarded


def _clear() -> None:
    for home in _HOMES:
        with suppress(ImportError, AttributeError):
            getattr(importlib.import_module(home), _EXECUTOR).clear_res()
            return
    _log.warning(
        f"MindSpore {ms.__version__} has no {_EXECUTOR} in {' or '.join(_HOMES)}, so it keeps the state of "
        "the failed gradient: start a new process before you compute another one"
    )
