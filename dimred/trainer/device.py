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
from dimred.errors import ConfigError, shown


def set_up(seed: int, device_target: Literal["CPU", "Ascend"] = "CPU", all_reduce_split: Sequence[int] = ()) -> Ranks:
    """Choose the device and graph mode, seed the global generators of MindSpore and NumPy, and join the ranks.

    Args:
        seed: the same on all ranks, so that they start from the same weights.
        device_target: what to compute on.
        all_reduce_split: numbers of the gradients, from 0, after which a fused all-reduce ends; () fuses none, which is
            MindSpore's default. Without meaning on CPU, where none is fused.

    Raises:
        ConfigError: MindSpore can't use the device.
    """
    before = ms.get_context("device_target")
    # Unless told, MindSpore uses device 0 for a process alone, and of several ranks goes by their order on the host.
    own = [int(os.environ["DEVICE_ID"])] if device_target == "Ascend" and "DEVICE_ID" in os.environ else []
    try:
        ms.set_device(device_target, *own)
    except RuntimeError as error:  # where it is the same device, this process has computed already, and stays there
        if before != device_target:
            raise ConfigError(
                f"--device-target is {device_target}, which MindSpore can't use here: {shown(str(error), 300)}; for "
                "Ascend, source CANN's set_env.sh first"
            ) from error
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
