"""The kinds of devices to compute on, in one table, and the default choice among them."""

import logging

from dimred.errors import number_of
from dimred.launch.ascend import Ascend
from dimred.launch.device import Cpu, Device, Found, Target
from dimred.launch.gpu import NvidiaGpu

_log = logging.getLogger(__name__)

DEVICES: dict[Target, Device] = {device.target: device for device in (Ascend(), NvidiaGpu(), Cpu())}
"""The kinds of devices by name. Without ``--device-target``, the first one that is present is used."""


def choose_devices(target: Target | None, devices: int | None, *, nodes: int | None = None) -> tuple[Target, int]:
    """Choose the options that were not given, and log them with the reason.

    Args:
        target: ``--device-target``, or None.
        devices: ``--devices``, all hosts together, or None for all devices of these hosts, or one CPU per host.
        nodes: number of hosts, assumed to be alike; None for one.

    Returns:
        The kind of device, and the number of devices on all hosts together.
    """
    if target is not None and devices is not None:
        return target, devices
    kind, found, reasons = _look(target)
    if devices is None:
        devices = (nodes or 1) * DEVICES[kind].default_count(found)
    _log.info(f"device: {kind}, {number_of(devices, 'rank')} ({reasons}--device-target and --devices change this)")
    return kind, devices


def choose_device(target: Target | None) -> Target:
    """Choose a single-process program's device, unless ``target`` names it, and log it with the reason."""
    if target is not None:
        return target
    kind, _, reasons = _look(None)
    _log.info(f"device: {kind} ({reasons}--device-target changes this)")
    return kind


def make_ready(target: Target) -> None:
    """Prepare this process for a device, before it imports MindSpore.

    Raises:
        ConfigError: something that the device needs is missing, or MindSpore was already imported without it.
    """
    DEVICES[target].make_ready(f"--device-target is {target}", "use --device-target CPU")


def _look(target: Target | None) -> tuple[Target, Found, str]:
    """Look for the device, or for one kind after the other until one is found.

    Returns:
        The kind, how many there are, and a phrase for what the search found of each kind.
    """
    reasons = ""
    for kind in DEVICES if target is None else (target,):
        found = DEVICES[kind].find()
        reasons += f"{found.words}; " if found.words else ""
        if found.n_devices:
            break
    return kind, found, reasons
