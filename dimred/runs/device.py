"""Set up the process's device before the first cell is built."""

import gc
import logging
import os
from collections.abc import Sequence
from operator import attrgetter
from typing import Literal

os.environ.setdefault("GLOG_v", "3")  # errors only; MindSpore reads it when it loads

import mindspore as ms
from mindspore import communication, nn, ops

from dimred.config import StageConfig
from dimred.distributed.group import Group
from dimred.distributed.ranks import ALONE, Ranks
from dimred.errors import ConfigError, shown
from dimred.launch.device import Target
from dimred.launch.devices import DEVICES

_log = logging.getLogger(__name__)

Mode = Literal["graph", "pynative"]

_COMPILED_ONLY = ("precision.jit_level", "all_reduce_split")  # keys with an effect on compiled graphs alone
_SPECIAL_KEYS = sorted(frozenset[str]().union(*(device.special_keys for device in DEVICES.values())))
_DEFAULTS = StageConfig()


def set_up(
    seed: int,
    device_target: Target = "CPU",
    all_reduce_split: Sequence[int] = (),
    deterministic: bool = False,
    mode: Mode = "graph",
) -> Ranks:
    """Choose the device and the mode, seed the global generators of MindSpore and NumPy, and join the ranks.

    A GPU computes float32 in float32, without TF32, unless ``set_precision`` allows it.

    Args:
        seed: must be the same on all ranks, so that they start from the same weights.
        device_target: the kind of device to compute on; ``make_ready`` has prepared this process for it.
        all_reduce_split: indices of the gradients that end a fused all-reduce; () fuses none. Only for several ranks
            on Ascend.
        deterministic: whether kernels and collectives must give the same bits in every run.
        mode: graph or pynative.

    Returns:
        The ranks of the job, or ``ALONE``.

    Raises:
        ConfigError: MindSpore can't use the device.
    """
    gc.freeze()  # MindSpore collects garbage at each compilation; imported modules need no visit
    use_device(device_target)
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(seed)
    if deterministic and ms.get_context("deterministic") != "ON":  # can be set only once, before the ranks join
        ms.set_deterministic(True)
    ranks = _join(device_target, all_reduce_split) if os.environ.get("MS_ROLE") == "MS_WORKER" else ALONE
    if DEVICES[device_target].starts_late:
        _compute_once(device_target)
    return ranks


def use_device(target: Target, *, allow_short_type: bool = False) -> None:
    """Let MindSpore compute on a device.

    Args:
        target: the kind of device.
        allow_short_type: whether a device with ``turns_short_type_off`` may use its shorter type all the same.

    Raises:
        ConfigError: MindSpore can't use it.
    """
    before = ms.get_context("device_target")
    # By default MindSpore gives device 0 to a process alone, and devices in order of rank to several ranks on a host.
    device = [int(os.environ["DEVICE_ID"])] if target != "CPU" and "DEVICE_ID" in os.environ else []
    try:
        ms.set_device(target, *device)
    except RuntimeError as error:  # if it is the same device, this process has computed on it before, and keeps it
        if before != target:
            raise ConfigError(
                f"--device-target is {target}, which MindSpore can't use here: {shown(str(error), 300)}; "
                f"{DEVICES[target].remedy}"
            ) from error
    if DEVICES[target].turns_short_type_off:
        _allow_short_type(target, allow_short_type)


def _compute_once(target: Target) -> None:
    """Start the device, or say why it does not start; this may take a quarter of an hour (see ``dimred.launch.gpu``).

    Raises:
        ConfigError: the device can't compute.
    """
    try:
        ops.add(ms.Tensor(1.0), ms.Tensor(1.0)).asnumpy()
    except RuntimeError as error:
        raise ConfigError(
            f"--device-target is {target}, on which MindSpore can't compute: {shown(str(error), 300)}; dimred doctor "
            "checks what it needs"
        ) from error
    _log.debug("preparing the run")


def _join(target: Target, all_reduce_split: Sequence[int]) -> Ranks:
    """Join the ranks of the job."""
    communication.init()
    splits = all_reduce_split if "all_reduce_split" in DEVICES[target].special_keys else ()
    return Group(communication.get_rank(), communication.get_group_size(), splits)


def set_precision(config: StageConfig) -> None:
    """Set whether a device may compute float32 products in a shorter type.

    A search computes float32 in float32, whatever ``precision`` says. Keys that are set without an effect are logged.
    """
    precision = config.precision
    target = ms.get_context("device_target")
    device = DEVICES[target]
    if device.short_type:
        allowed = False if config.needs_exact_float32 else getattr(precision, device.short_type)
        if allowed is not None:
            _allow_short_type(target, allowed)
    is_set = {key: attrgetter(key)(config) != attrgetter(key)(_DEFAULTS) for key in _SPECIAL_KEYS}
    if keys := [key for key in _SPECIAL_KEYS if is_set[key] and key not in device.special_keys]:
        _log.info(f"without effect on {target}: {', '.join(keys)}")
    if config.mode == "pynative" and (keys := [key for key in _COMPILED_ONLY if is_set[key]]):
        _log.info(f"without effect in PyNative: {', '.join(keys)}")
    if config.needs_exact_float32 and (precision.hf32 or precision.tf32):
        _log.info("precision.hf32 and precision.tf32 have no effect on a search, which computes float32 in float32")


def compile_at(level: str | None, cell: nn.Cell) -> None:
    """Set how far a cell and the cells inside it are compiled, except those that already have a setting.

    Args:
        level: ``precision.jit_level``; None for MindSpore's choice.
        cell: the cell, before its first call.
    """
    if level is None:
        return
    for _, part in cell.cells_and_names():
        if not part.jit_config_dict:
            part.set_jit_config(ms.JitConfig(jit_level=level))


def _allow_short_type(target: Target, allowed: bool) -> None:
    """Set whether convolutions and matrix products of float32 numbers may be computed in the device's shorter type."""
    options = getattr(ms.device_context, target.lower()).op_precision
    name = DEVICES[target].short_type
    getattr(options, f"conv_allow_{name}")(allowed)
    getattr(options, f"matmul_allow_{name}")(allowed)
