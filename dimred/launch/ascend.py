"""Huawei's Ascend devices. None of this has been run on one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from dimred.errors import ConfigError, number_of
from dimred.io.regular_file import read_regular
from dimred.launch.device import CheckResult, Device, Found, Target, refuse_wrong
from dimred.launch.environment import without_cluster

ASCEND_DEVICE = Path("/dev/davinci_manager")
_CANN = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")  # set by CANN's set_env.sh
_CANN_OF = {
    "2.7.0": "8.2",
    "2.7.1": "8.3",
    "2.7.2": "8.5",
    "2.9": "9.0",
    "2.10": "9.1",
    "2.11": "9.2",
}
"""MindSpore version, or its first two numbers -> the CANN version that it is released with. Source: the table
"Confirming Version Matching Relationship" of MindSpore Transformers, whose releases name both:
https://www.mindspore.cn/mindformers/docs/en/r1.9.0/installation.html up to 2.9, and release 2.1's for 2.10 and 2.11."""
_COUNT = """
from mindspore.device_context import ascend
print(ascend.device_count() if ascend.is_available() else 0)
"""
_SECONDS_OF_HCCL = 600  # ranks that list a large image folder meet minutes apart; by default HCCL waits 120 s


class Ascend(Device):
    """Ascend devices, with CANN."""

    target: Target = "Ascend"
    remedy = "source CANN's set_env.sh first"
    short_type = "hf32"
    special_keys = frozenset({"precision.jit_level", "precision.hf32", "deterministic", "all_reduce_split"})

    def find(self) -> Found:
        count = ascend_devices()
        return Found(count, number_of(count, "Ascend device") if count else "no Ascend device")

    def checks(self) -> Iterator[CheckResult]:
        yield _device()
        yield _cann()

    def check(self, asked: str, otherwise: str, n_ranks: int = 1, *, joins: bool = False) -> None:
        refuse_wrong([_device()], asked, otherwise)  # without CANN's variables, MindSpore itself says what it lacks
        if joins and find_spec("hccl") is None:
            raise ConfigError(
                f"--devices asks for several Ascend devices, but {sys.executable} has no module 'hccl', with which "
                "MindSpore joins them; source CANN's set_env.sh, or install CANN's hccl-*.whl for this Python"
            )

    def rank_environment(self, number: int, *, is_alone: bool) -> dict[str, str]:
        if is_alone and "DEVICE_ID" in os.environ:  # others may use the host's first device
            return {}
        return super().rank_environment(number, is_alone=is_alone)

    def cluster_environment(self, n_ranks: int) -> dict[str, str]:
        return {"HCCL_CONNECT_TIMEOUT": str(_SECONDS_OF_HCCL)}


def ascend_devices() -> int:
    """Return how many Ascend devices MindSpore sees on this host; 0 if it can't use any, for whatever reason.

    MindSpore is asked in a separate process, because it is slow to load and does not always survive a driver fault.
    """
    if not ASCEND_DEVICE.exists():
        return 0
    command = [sys.executable, "-P", "-c", _COUNT]
    process = subprocess.run(command, env=without_cluster(os.environ), capture_output=True, text=True, check=False)
    words = process.stdout.split()
    return int(words[-1]) if process.returncode == 0 and words and words[-1].isdecimal() else 0


def _device() -> CheckResult:
    if ASCEND_DEVICE.exists():
        return CheckResult("device", f"Ascend, by {ASCEND_DEVICE}")
    return CheckResult("device", f"this host has no Ascend device ({ASCEND_DEVICE} is missing)", "install the driver")


def _cann() -> CheckResult:
    home = next((os.environ[name] for name in _CANN if os.environ.get(name)), None)
    if home is None:
        text = f"none: neither {' nor '.join(_CANN)} is set"
        return CheckResult("CANN", text, "install CANN, and source its set_env.sh")
    if not Path(home).is_dir():
        return CheckResult("CANN", f"{home}, which does not exist", "source the set_env.sh of an installed CANN")
    texts = [read_regular(path).decode(errors="replace") for path in Path(home).glob("version.*")]
    lines = [line for text in texts for line in text.splitlines()]
    found = next((line.strip() for line in lines if "ersion" in line), "no version found")
    return CheckResult("CANN", f"{home} ({found}{_cann_of_mindspore()})")


def _cann_of_mindspore() -> str:
    """Return a phrase with the CANN that the installed MindSpore is released with; empty if unknown."""
    try:
        mindspore = version("mindspore")
    except PackageNotFoundError:
        return ""
    cann = _CANN_OF.get(mindspore) or _CANN_OF.get(".".join(mindspore.split(".")[:2]))
    return f"; MindSpore {mindspore} is released with CANN {cann}" if cann else ""
