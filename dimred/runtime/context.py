"""Device, mode, seed: set once, before the first cell is built."""

import atexit
import os
from typing import Literal

os.environ.setdefault("GLOG_v", "3")  # errors only; MindSpore reads it when it loads

import mindspore as ms
from mindspore import nn


def set_up(seed: int, device_target: Literal["CPU", "Ascend"] = "CPU", graph_mode: bool = True) -> None:
    """Choose the device and mode, and seed MindSpore's and NumPy's global generators."""
    ms.set_device(device_target)
    ms.set_context(mode=ms.GRAPH_MODE if graph_mode else ms.PYNATIVE_MODE)
    ms.set_seed(seed)
    atexit.register(_silence_cell_finalisers)


def _silence_cell_finalisers() -> None:
    """At interpreter exit ``Cell.__del__`` meets module globals that are gone, and prints a traceback for each cell."""
    nn.Cell.__del__ = lambda self: None
