"""NVIDIA's GPUs as their driver reports them, and which of them a library has code for. MindSpore is not needed."""

import json
import mmap
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dimred.io.regular_file import open_regular
from dimred.workarounds.cuda_backend import DRIVER

Version = tuple[int, int]

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"  # numbers or UUIDs; CUDA ignores the first unknown one, and all after it
_SECONDS_TO_ANSWER = 60.0
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE: the driver works, but sees no GPU
# Prints the driver's answer. It runs in a separate process, because a driver fault may end or hang it, and because
# nothing may initialise CUDA in a process that starts others.
_ASK = f"""
import ctypes, json
try:
    cuda = ctypes.CDLL({DRIVER!r})
except OSError:
    raise SystemExit(print(json.dumps(None)))
version, count, text = ctypes.c_int(), ctypes.c_int(), ctypes.c_char_p()
cuda.cuDriverGetVersion(ctypes.byref(version))
status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
status = 0 if status == {_NO_DEVICE} else status
cuda.cuGetErrorString(status, ctypes.byref(text))
gpus = []
for number in range(count.value):
    device, name, size = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    major, minor = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), number)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # COMPUTE_CAPABILITY_MAJOR
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    gpus.append([name.value.decode(errors="replace"), [major.value, minor.value], size.value])
fault = f"{{(text.value or b'error').decode()}}, {{status}}" if status else ""
print(json.dumps([[version.value // 1000, version.value % 1000 // 10], gpus, fault]))
"""
_KERNEL_VERSION = Path("/proc/driver/nvidia/version")  # absent in WSL
_CONTAINER = struct.pack("<I", 0xBA55ED50)  # begins a container with code for several kinds of GPU
_LEAST_HEADER = 64  # bytes of an entry's header; PTX has 72
PTX = 1
MACHINE_CODE = 2


class Gpu(NamedTuple):
    """A GPU that this process may use."""

    name: str
    capability: Version  # compute capability
    memory: int  # bytes


class Driver(NamedTuple):
    """The driver's answer."""

    cuda: Version  # the newest CUDA that it can run
    gpus: tuple[Gpu, ...]  # in CUDA's order, without those that CUDA_VISIBLE_DEVICES hides
    fault: str  # its error text and number; empty if it works


class Entry(NamedTuple):
    """Code in a container: its kind and architecture, where its header begins, and the lengths of header and code."""

    kind: int
    arch: int
    place: int
    header: int
    length: int


class Container(NamedTuple):
    """One module's code for several kinds of GPU: where it begins, how long its entries are, and the entries."""

    place: int
    size: int
    entries: list[Entry]


class CudaCode(NamedTuple):
    """The code in a library for its kernels: the compute capabilities of its machine code, and of its PTX."""

    native: tuple[Version, ...]
    ptx: tuple[Version, ...]

    def runs_on(self, capability: Version) -> bool:
        """Return whether machine code runs on this capability: it has the same major number, and is no newer."""
        return any(code[0] == capability[0] and code[1] <= capability[1] for code in self.native)

    def is_compiled_for(self, capability: Version) -> bool:
        """Return whether the driver must compile the kernels for this capability, from PTX that is no newer."""
        return not self.runs_on(capability) and any(code <= capability for code in self.ptx)


def ask_driver() -> Driver | None:
    """Ask the driver for the GPUs that CUDA_VISIBLE_DEVICES shows to this process; None if there is no driver."""
    command = [sys.executable, "-I", "-S", "-c", _ASK]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_TO_ANSWER, check=False)
    except subprocess.TimeoutExpired:
        return Driver((0, 0), (), f"no answer in {_SECONDS_TO_ANSWER:.0f} s")
    if done.returncode:
        return Driver((0, 0), (), f"the program that asks it ended with status {done.returncode}")
    answer = json.loads(done.stdout)
    if answer is None:
        return None
    version, gpus, fault = answer
    return Driver(tuple(version), tuple(Gpu(name, tuple(capability), size) for name, capability, size in gpus), fault)


def driver_release() -> str | None:
    """Return the driver's own version, such as 550.54.14; None if the system doesn't report it."""
    try:
        text = _KERNEL_VERSION.read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
    return found and found[0]


def kernel_cache() -> Path:
    """Return the folder where the driver keeps the kernels that it has compiled."""
    return Path(os.environ.get("CUDA_CACHE_PATH", "~/.nv/ComputeCache")).expanduser()


def visible_device(number: int) -> str:
    """Return the CUDA_VISIBLE_DEVICES value that shows only one of the GPUs visible to this process.

    Args:
        number: its number among the visible ones, in CUDA's order.
    """
    chosen = os.environ.get(VISIBLE_DEVICES)
    names = [] if chosen is None else [name.strip() for name in chosen.split(",")]
    return names[number] if number < len(names) else str(number)


def cuda_code(library: Path) -> CudaCode:
    """Read which GPUs a library has code for, from its first container: in MindSpore's libraries all are alike."""
    with open_regular(library) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        first = next(containers(data), Container(0, 0, []))
    kinds = {(entry.kind, entry.arch) for entry in first.entries}
    native, ptx = (sorted(arch for kind, arch in kinds if kind == wanted) for wanted in (MACHINE_CODE, PTX))
    return CudaCode(tuple(divmod(arch, 10) for arch in native), tuple(divmod(arch, 10) for arch in ptx))


def containers(data: mmap.mmap | bytearray) -> Iterator[Container]:
    """Yield the containers in a library's bytes: each has a 16-byte header, and then the entries."""
    place = data.find(_CONTAINER)
    while place >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", data, place)
        if (version, header) != (1, 16) or place + 16 + size > len(data):
            place = data.find(_CONTAINER, place + 4)
            continue
        end = place + 16 + size
        yield Container(place, size, list(_entries(data, place + 16, end)))
        place = data.find(_CONTAINER, end)


def _entries(data: mmap.mmap | bytearray, place: int, end: int) -> Iterator[Entry]:
    while place + _LEAST_HEADER <= end:
        kind, _, header, length = struct.unpack_from("<HHIQ", data, place)
        (arch,) = struct.unpack_from("<I", data, place + 28)
        yield Entry(kind, arch, place, header, length)
        place += header + length
