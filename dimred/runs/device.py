"""Set up the process's device before the first cell is built."""

import gc
import logging
import os
from collections.abc import Sequence

os.environ.setdefault("GLOG_v", "3")  # errors only; MindSpore reads it when it loads

import mindspore as ms
from mindspore import communication

from dimred.config import StageConfig
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, shown
from dimred.launch.devices import Target

_log = logging.getLogger(__name__)


def set_up(
    seed: int,
    device_target: Target = "CPU",
    all_reduce_split: Sequence[int] = (),
    deterministic: bool = False,
) -> Ranks:
    """Choose the device and graph mode, seed the global generators of MindSpore and NumPy, and join the ranks.

    Args:
        seed: must be the same on all ranks, so that they start from the same weights.
        device_target: the kind of device to compute on.
        all_reduce_split: the numbers, from 0, of the gradients that end a fused all-reduce; () fuses none. Ignored on
            CPU, and if there is only one process.
        deterministic: whether kernels and collectives are to give the same bits in every run.

    Returns:
        The ranks of the job, or ``ALONE``.

    Raises:
        ConfigError: MindSpore can't use the device.
    """
    gc.freeze()  # MindSpore collects garbage at each compilation; imported modules need no visit
    _choose_device(device_target)
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(seed)
    if deterministic and ms.get_context("deterministic") != "ON":  # can be set only once, before the ranks join
        ms.set_deterministic(True)
    return _join(device_target, all_reduce_split) if os.environ.get("MS_ROLE") == "MS_WORKER" else ALONE


def _choose_device(target: Target) -> None:
    before = ms.get_context("device_target")
    # By default MindSpore gives device 0 to a process alone, and devices in order of rank to several ranks on a host.
    device = [int(os.environ["DEVICE_ID"])] if target == "Ascend" and "DEVICE_ID" in os.environ else []
    try:
        ms.set_device(target, *device)
    except RuntimeError as error:  # if it is the same device, this process has computed on it before, and keeps it
        if before != target:
            raise ConfigError(
                f"--device-target is {target}, which MindSpore can't use here: {shown(str(error), 300)}; for Ascend, "
                "source CANN's set_env.sh first"
            ) from error


def _join(target: Target, all_reduce_split: Sequence[int]) -> Ranks:
    """Join the ranks of the job."""
    from dimred.distributed.group import Group  # a process that is alone needs no collectives

    communication.init()
    splits = all_reduce_split if target == "Ascend" else ()
    return Group(communication.get_rank(), communication.get_group_size(), splits)


def set_precision(settings: StageConfig) -> None:
    """Set how graphs are compiled, and whether a device may compute float32 products in HF32, as ``precision`` says.

    Log which of these settings, ``deterministic`` and ``all_reduce_split`` have no effect on CPU.
    """
    precision, on_ascend = settings.precision, ms.get_context("device_target") == "Ascend"
    if precision.jit_level is not None:
        ms.set_context(jit_config={"jit_level": precision.jit_level})
    if precision.hf32 is not None and on_ascend:
        ms.device_context.ascend.op_precision.conv_allow_hf32(precision.hf32)
        ms.device_context.ascend.op_precision.matmul_allow_hf32(precision.hf32)
    of_ascend = {
        "precision.jit_level": precision.jit_level is not None,
        "precision.hf32": precision.hf32 is not None,
        "deterministic": settings.deterministic,
        "all_reduce_split": bool(settings.all_reduce_split),
    }
    keys = [key for key, is_asked in of_ascend.items() if is_asked]
    if keys and not on_ascend:
        _log.info(f"without effect on CPU: {', '.join(keys)}")
