"""Set once for the process, before the first cell is built: device, mode, seed, and where native code prints."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

os.environ.setdefault("GLOG_v", "3")  # errors only; MindSpore reads it when it loads

import mindspore as ms
from mindspore import communication

from dimred.distributed.ranks import ALONE, Group, Ranks


def set_up(seed: int, device_target: Literal["CPU", "Ascend"] = "CPU", all_reduce_split: Sequence[int] = ()) -> Ranks:
    """Choose the device and graph mode, seed the global generators of MindSpore and NumPy, and join msrun's ranks.

    Args:
        seed: the same on all ranks, so that they start from the same weights.
        device_target: what to compute on.
        all_reduce_split: numbers of the gradients, from 0, after which a fused all-reduce ends; () fuses all of them.
            Without meaning on CPU, which does not fuse.
    """
    before = ms.get_context("device_target")
    try:
        ms.set_device(device_target)
    except RuntimeError:  # this process has computed already, and stays where it did
        if before != device_target:
            raise
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(seed)
    if os.environ.get("MS_ROLE") != "MS_WORKER":
        return ALONE
    communication.init()
    ranks = Group(communication.get_rank(), communication.get_group_size())
    ms.set_auto_parallel_context(
        parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True, device_num=ranks.group_size
    )
    if all_reduce_split and device_target == "Ascend":
        ms.set_auto_parallel_context(all_reduce_fusion_config=list(all_reduce_split))
    return ranks


@contextmanager
def redirect_native_stderr(path: Path) -> Iterator[None]:
    """Inside the block, file descriptor 2 is ``path``, and Python's ``sys.stderr`` stays the terminal.

    MindSpore's own code would spoil a progress bar. Where standard error is no terminal nothing changes.
    """
    if not sys.stderr.isatty():
        yield
        return
    sys.stderr.flush()
    terminal, before = os.dup(2), sys.stderr
    with path.open("ab") as log, os.fdopen(terminal, "w", buffering=1, encoding=before.encoding) as shown:
        os.dup2(log.fileno(), 2)
        sys.stderr = shown
        try:
            yield
        finally:
            sys.stderr = before
            os.dup2(terminal, 2)
