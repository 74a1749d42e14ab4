"""The kind and the number of devices of a job, where the user does not give them."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

from dimred.errors import number_of
from dimred.launch.environment import without_cluster

_log = logging.getLogger(__name__)

ASCEND_DEVICE = Path("/dev/davinci_manager")
_COUNT = """
from mindspore.device_context import ascend
print(ascend.device_count() if ascend.is_available() else 0)
"""
_USUAL_DEVICES = 8  # of a host with Ascend devices, for a dry run on a host without any

Target = Literal["Ascend", "CPU"]


def ascend_devices() -> int:
    """Return how many Ascend devices MindSpore sees on this host; 0 if it can't use any, for whatever reason.

    MindSpore is asked in a process of its own, because it is slow to load and does not always survive a driver's fault.
    """
    if not ASCEND_DEVICE.exists():
        return 0
    command = [sys.executable, "-P", "-c", _COUNT]
    process = subprocess.run(command, env=without_cluster(os.environ), capture_output=True, text=True, check=False)
    words = process.stdout.split()
    return int(words[-1]) if process.returncode == 0 and words and words[-1].isdecimal() else 0


def choose_devices(target: Target | None, devices: int | None, *, nodes: int | None = None) -> tuple[Target, int]:
    """Choose the options that were not given, and log them: all Ascend devices if MindSpore sees any, else one CPU.

    Args:
        target: ``--device-target``, or None.
        devices: ``--devices``, all hosts together, or None.
        nodes: number of hosts, which are taken to be alike; None for one.

    Returns:
        The kind of device, and the number of devices of all hosts together.
    """
    if target is not None and devices is not None:
        return target, devices
    n_here = 0 if target == "CPU" else ascend_devices()
    kind: Target = target or ("Ascend" if n_here else "CPU")
    if devices is None:
        devices = (nodes or 1) * ((n_here or _USUAL_DEVICES) if kind == "Ascend" else 1)
    in_words = number_of(n_here, "Ascend device") if n_here else "no Ascend device"
    reason = f"MindSpore sees {in_words} here; " if target != "CPU" else ""
    _log.info(f"device: {kind}, {number_of(devices, 'rank')} ({reason}--device-target and --devices change this)")
    return kind, devices
