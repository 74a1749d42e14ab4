"""Set up the process's device before the first cell is built, and profile steps."""

import gc
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("GLOG_v", "3")  # errors only; MindSpore reads it when it loads

import mindspore as ms
from mindspore import communication, profiler

from dimred.config import StageConfig
from dimred.config.parts import ProfileConfig
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, shown

_log = logging.getLogger(__name__)


def set_up(
    seed: int,
    device_target: Literal["CPU", "Ascend"] = "CPU",
    all_reduce_split: Sequence[int] = (),
    deterministic: bool = False,
) -> Ranks:
    """Choose the device and graph mode, seed the global generators of MindSpore and NumPy, and join the ranks.

    Args:
        seed: must be the same on all ranks, so that they start from the same weights.
        device_target: the kind of device to compute on.
        all_reduce_split: the numbers, from 0, of the gradients that end a fused all-reduce; () fuses none, which is
            MindSpore's default. Ignored on CPU, and if there is only one process.
        deterministic: whether kernels and collectives are to give the same bits in every run.

    Returns:
        The ranks of the job, or ``ALONE``.

    Raises:
        ConfigError: MindSpore can't use the device.
    """
    gc.freeze()  # MindSpore collects garbage at each compilation; what has been imported needs no visit
    before = ms.get_context("device_target")
    # By default MindSpore gives device 0 to a process alone, and devices in order of rank to several ranks on a host.
    device = [int(os.environ["DEVICE_ID"])] if device_target == "Ascend" and "DEVICE_ID" in os.environ else []
    try:
        ms.set_device(device_target, *device)
    except RuntimeError as error:  # if it is the same device, this process has computed on it before, and keeps it
        if before != device_target:
            raise ConfigError(
                f"--device-target is {device_target}, which MindSpore can't use here: {shown(str(error), 300)}; for "
                "Ascend, source CANN's set_env.sh first"
            ) from error
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(seed)
    if deterministic and ms.get_context("deterministic") != "ON":  # can be set only once, before the ranks join
        ms.set_deterministic(True)
    if os.environ.get("MS_ROLE") != "MS_WORKER":
        return ALONE
    from dimred.distributed.group import Group  # a process that is alone needs no collectives

    communication.init()
    ranks = Group(communication.get_rank(), communication.get_group_size())
    if all_reduce_split and device_target == "Ascend":
        from dimred.workarounds.all_reduce_fusion import fuse_all_reduces

        fuse_all_reduces(all_reduce_split, ranks.group_size)
    return ranks


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


class StepProfiler:
    """A context manager that profiles some steps of this process; without options it does nothing.

    Args:
        options: which steps to profile; None for none.
        folder: folder for the record.
    """

    def __init__(self, options: ProfileConfig | None, folder: Path):
        self._options, self._folder, self._n_steps = options, folder, 0
        self._profile: Any = None

    def __enter__(self) -> "StepProfiler":
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._profile.stop()

    def after_step(self) -> None:
        """Count a step; start the profiler before the first step to record, and stop it after the last one."""
        if self._options is None:
            return
        self._n_steps += 1
        if self._n_steps == self._options.first_step - 1:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._profile = profiler.profile(
                schedule=profiler.schedule(wait=0, active=self._options.steps, repeat=1),
                on_trace_ready=profiler.tensorboard_trace_handler(str(self._folder)),
            )
        elif self._profile is not None:
            self._profile.step()
            if self._n_steps == self._options.first_step - 1 + self._options.steps:
                self._profile.stop()
                self._profile = None
                _log.info(f"profile of {self._options.steps} steps: {self._folder}")
