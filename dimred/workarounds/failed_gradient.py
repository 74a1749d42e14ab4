"""After an error inside a gradient in PyNative, later graphs and tensors fail.

Graphs of gradients are then compiled for second derivatives, which fails for cross entropy; and after a second error no
tensor can be indexed by a number any more. Seen in MindSpore 2.7.1 to 2.10. We know of no report. ``tests/workarounds``
fails once the fault is gone.
"""

from contextlib import suppress

import mindspore as ms


def clear_failed_gradient() -> None:
    """Clear MindSpore's state of a PyNative gradient that an error or ctrl-C has interrupted."""
    if ms.get_context("mode") == ms.PYNATIVE_MODE:
        with suppress(ImportError):  # it is private
            from mindspore.common.api import _pynative_executor

            _pynative_executor.clear_res()
